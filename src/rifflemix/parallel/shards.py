"""Shards of a sequence, the exchange between their processes, and base classes of mixers.

Methods that exchange data are collective: all processes of the group call them in the same order.
Gradients follow the convention of torch.distributed: they belong to the sum of the losses of all
processes. Results that are zero keep their graph, because backward passes are collective too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.mixers.packed import Segments
from rifflemix.parallel.compat import all_gather, all_reduce, all_to_all


@dataclass(frozen=True)
class SequenceGroup:
    """The processes of one sequence. Each has the same number of its tokens.

    Attributes:
        group: process group of torch.distributed.
        rank: rank of this process in the group.
        size: number of processes.
        extra: number of additional tokens in front on rank 0, for a class token.
    """

    group: Any
    rank: int
    size: int
    extra: int = 0

    def shards(self, length: int) -> Shards:
        """Return the shards if this process has `length` tokens, including extra tokens."""
        each = length - self.extra if self.rank == 0 else length
        lengths = (each + self.extra, *[each] * (self.size - 1))
        return Shards(self.group, self.rank, lengths)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return self: a copied model uses the same process group."""
        return self


@dataclass(frozen=True)
class Shards:
    """A sequence of N tokens, split into one contiguous shard for each process of a group.

    Attributes:
        group: process group of torch.distributed.
        rank: rank of this process in the group.
        lengths: number of tokens of each process.
    """

    group: Any
    rank: int
    lengths: tuple[int, ...]

    @property
    def length(self) -> int:
        """Total number of tokens N."""
        return sum(self.lengths)

    @property
    def here(self) -> int:
        """Number of tokens of this process."""
        return self.lengths[self.rank]

    @property
    def offset(self) -> int:
        """Number of tokens of all earlier processes."""
        return sum(self.lengths[: self.rank])

    def total(self, x: Tensor) -> Tensor:
        """Sum `x` over all processes."""
        return all_reduce(x, self.group)

    def total_before(self, x: Tensor) -> Tensor:
        """Sum `x` over the earlier processes; zeros on rank 0."""
        later = len(self.lengths) - 1 - self.rank
        sent = [0] * (self.rank + 1) + [1] * later
        received = [1] * self.rank + [0] * (later + 1)
        rows = x.unsqueeze(0).expand(later, *x.shape)
        return all_to_all(rows, received, sent, self.group).sum(0)

    def gather(self, x: Tensor, dim: int = 1) -> Tensor:
        """Gather `x` of all processes along `dim`, on each process."""
        longest = max(self.lengths)
        rows = x.movedim(dim, 0)
        rows = F.pad(rows, (0, 0) * (x.dim() - 1) + (0, longest - len(rows)))
        parts = all_gather(rows, self.group).unflatten(0, (len(self.lengths), longest))
        kept = [part[:length] for part, length in zip(parts, self.lengths, strict=True)]
        return torch.cat(kept).movedim(0, dim)

    def gather_each(self, x: Tensor) -> Tensor:
        """Stack `x` of all processes, (processes, ...); shapes must be equal."""
        return all_gather(x.unsqueeze(0), self.group)

    def gather_mask(self, mask: Tensor | None) -> Tensor | None:
        """Gather padding masks (B, n) of all processes to (B, N)."""
        return None if mask is None else self.gather(mask.to(torch.uint8)).bool()

    def from_first(self, x: Tensor) -> Tensor:
        """Broadcast `x` of rank 0; all shapes must be equal."""
        here = torch.tensor(self.rank == 0, device=x.device)
        return self.total(x.masked_fill(~here, 0.0))

    def shares(self, count: int) -> list[range]:
        """Split range(count) over the processes as evenly as possible."""
        each, more = divmod(count, len(self.lengths))
        starts = [each * rank + min(rank, more) for rank in range(len(self.lengths) + 1)]
        return [range(start, stop) for start, stop in pairwise(starts)]

    def to_channels(self, x: Tensor, wanted: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Exchange own tokens of all channels for all tokens of some channels.

        Args:
            x: (B, n, C) tokens of this process.
            wanted: channels for each process, by default `shares`.

        Returns:
            (B, N, c), with the c channels of this process.
        """
        shares = self.shares(x.shape[2])
        if wanted is not None and list(map(list, wanted)) != list(map(list, shares)):
            channels = [channel for share in wanted for channel in share]
            x = x.index_select(2, torch.tensor(channels, device=x.device))
        widths = [len(share) for share in wanted or shares]
        return self._transpose(x, widths, 2, list(self.lengths), 1)

    def to_tokens(self, y: Tensor, widths: list[int]) -> Tensor:
        """Undo `to_channels`: map (B, N, c) to (B, n, C).

        Process i has `widths[i]` channels.
        """
        return self._transpose(y, list(self.lengths), 1, widths, 2)

    def _transpose(
        self, x: Tensor, cut: list[int], cut_dim: int, joined: list[int], joined_dim: int
    ) -> Tensor:
        """Split `x` along `cut_dim` and join received parts along `joined_dim`."""
        batch, own = len(x), cut[self.rank]
        packed = torch.cat([part.flatten() for part in x.split(cut, cut_dim)])
        sent = [batch * size * x.shape[joined_dim] for size in cut]
        received = [batch * own * size for size in joined]
        arrived = all_to_all(packed, received, sent, self.group).split(received)
        shapes = [(batch, size, own) if joined_dim == 1 else (batch, own, size) for size in joined]
        parts = [part.view(shape) for part, shape in zip(arrived, shapes, strict=True)]
        return torch.cat(parts, joined_dim)

    def exchange(self, x: Tensor, wanted: Sequence[Sequence[int] | Tensor]) -> Tensor:
        """Fetch tokens by position from all processes.

        Args:
            x: (B, n, ...) tokens of this process.
            wanted: positions for each process, in any order; equal on all processes. Positions
                below 0 or at least N give zeros.

        Returns:
            (B, len(wanted[rank]), ...).
        """
        starts = torch.tensor([*self.starts(), self.length])
        lists = [torch.as_tensor(positions).contiguous() for positions in wanted]
        holders = [torch.bucketize(positions, starts, right=True) - 1 for positions in lists]
        mine = [
            positions[holder == self.rank] - self.offset
            for positions, holder in zip(lists, holders, strict=True)
        ]
        rows = x.movedim(1, 0)
        sent = rows.index_select(0, torch.cat(mine).to(x.device))
        order = [torch.nonzero(holders[self.rank] == rank)[:, 0] for rank in range(len(wanted))]
        arrived = all_to_all(sent, [len(o) for o in order], [len(m) for m in mine], self.group)
        out = rows.new_zeros(len(lists[self.rank]), *rows.shape[1:])
        return out.index_copy(0, torch.cat(order).to(x.device), arrived).movedim(0, 1)

    def starts(self) -> list[int]:
        """Return the position of the first token of each process."""
        return [0, *accumulate(self.lengths)][:-1]


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
