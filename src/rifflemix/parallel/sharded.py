"""Base classes of sharded mixers."""

from __future__ import annotations

from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.mixers.packed import Segments
from rifflemix.parallel.shards import SequenceGroup, Shards


class ShardedMixer(TokenMixer):
    """A mixer that gets the tokens of this process and mixes the whole sequence.

    `shard_sequence` changes the class of a mixer in place, as `fully_shard` of torch does.
    Parameters, buffers and their names do not change.
    """

    sequence: SequenceGroup

    def shards(self, length: int) -> Shards:
        """Return the shards of a sequence if this process has `length` tokens.

        Raises:
            InputError: all shards together have more than `max_length` tokens.
        """
        shards = self.sequence.shards(length)
        if self.max_length is not None and shards.length > self.max_length:
            raise bad_argument(
                "x",
                f"at most max_length = {self.max_length} tokens in all shards",
                shards.length,
                "build the mixer with a larger max_length",
            )
        return shards

    def cannot_shard(self) -> str:
        """Return the setting that has no sharded variant, or an empty string."""
        return ""

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        """Raise InputError: packed sequences would end in the middle of a shard."""
        raise bad_argument("cu_seqlens", "None where sequences are split over processes", "offsets")

    def _check_streams(self) -> None:
        raise bad_argument(
            "model", "a model that is not sharded, to stream", f"a sharded {self.card.name}"
        )


class ShardedAttention(ShardedMixer):
    """A sharded mixer with queries, keys and values."""

    padded_queries: str

    def cannot_shard(self) -> str:
        """Report padded_queries='mean': the mean of all values is not implemented for shards."""
        return "padded_queries='mean'" if self.padded_queries == "mean" else ""
