"""What all sharded modules have: they know the processes that hold their sequence."""

from __future__ import annotations

from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.mixers.packed import Segments
from rifflemix.parallel.shards import SequenceGroup, Shards


class ShardedMixer(TokenMixer):
    """A mixer whose `mix` gets this process's tokens, and mixes those of the whole sequence.

    A mixer in a model becomes one by changing its class, as `torch.distributed.fsdp.fully_shard`
    does it: parameters, buffers and their names stay.
    """

    sequence: SequenceGroup

    def shards(self, length: int) -> Shards:
        """Who holds what where this process holds `length` tokens.

        Raises:
            InputError: all of them are more than `max_length`.
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
        """What of this mixer's settings has no sharded form, and why; empty if nothing."""
        return ""

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        """Refused: sequences of a row would end in the midst of a shard."""
        raise bad_argument("cu_seqlens", "None where sequences are split over processes", "offsets")

    def _check_streams(self) -> None:
        raise bad_argument(
            "model", "a model that is not sharded, to stream", f"a sharded {self.card.name}"
        )


class ShardedAttention(ShardedMixer):
    """One with queries, keys and values."""

    padded_queries: str

    def cannot_shard(self) -> str:
        """The mean of all values, padded ones included, is not made for shards."""
        return "padded_queries='mean'" if self.padded_queries == "mean" else ""
