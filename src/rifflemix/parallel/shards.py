"""One sequence over several processes: who holds which tokens, and how they are exchanged.

All methods that exchange something are collective: every process of the group calls them, in the
same order. They have gradients, by the convention of torch.distributed: what is differentiated is
the sum over the processes of what each calls its loss. A result keeps its graph where it is zero,
since the processes exchange gradients together, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import all_gather, all_reduce, all_to_all


@dataclass(frozen=True)
class SequenceGroup:
    """The processes that hold one sequence, each as many of its tokens as the others.

    Attributes:
        group: of torch.distributed.
        rank: this process among them.
        size: how many there are.
        extra: tokens that the first process holds besides, in front: a class token.
    """

    group: Any
    rank: int
    size: int
    extra: int = 0

    def shards(self, length: int) -> Shards:
        """Who holds what where this process holds `length` tokens, the extra ones included."""
        each = length - self.extra if self.rank == 0 else length
        lengths = (each + self.extra, *[each] * (self.size - 1))
        return Shards(self.group, self.rank, lengths)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of a model talks to the same processes."""
        return self


@dataclass(frozen=True)
class Shards:
    """A sequence of N tokens in runs of some length, one for each process of a group.

    Attributes:
        group: of torch.distributed.
        rank: this process among them.
        lengths: tokens of each.
    """

    group: Any
    rank: int
    lengths: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens N of all processes."""
        return sum(self.lengths)

    @property
    def here(self) -> int:
        """Tokens of this process."""
        return self.lengths[self.rank]

    @property
    def offset(self) -> int:
        """Tokens of all processes before this one."""
        return sum(self.lengths[: self.rank])

    def total(self, x: Tensor) -> Tensor:
        """The sum of `x` over the processes, the same on each."""
        return all_reduce(x, self.group)

    def total_before(self, x: Tensor) -> Tensor:
        """The sum of `x` over the processes before this one: zeros on the first."""
        later = len(self.lengths) - 1 - self.rank
        sent = [0] * (self.rank + 1) + [1] * later
        received = [1] * self.rank + [0] * (later + 1)
        rows = x.unsqueeze(0).expand(later, *x.shape)
        return all_to_all(rows, received, sent, self.group).sum(0)

    def gather(self, x: Tensor, dim: int = 1) -> Tensor:
        """The tokens of all processes, on each: `x` holds this one's along `dim`."""
        longest = max(self.lengths)
        rows = x.movedim(dim, 0)
        rows = F.pad(rows, (0, 0) * (x.dim() - 1) + (0, longest - len(rows)))
        parts = all_gather(rows, self.group).unflatten(0, (len(self.lengths), longest))
        kept = [part[:length] for part, length in zip(parts, self.lengths, strict=True)]
        return torch.cat(kept).movedim(0, dim)

    def gather_each(self, x: Tensor) -> Tensor:
        """`x` of every process, the same shape on all: (processes, ...)."""
        return all_gather(x.unsqueeze(0), self.group)

    def gather_mask(self, mask: Tensor | None) -> Tensor | None:
        """A padding mask (B, n) of this process's tokens -> (B, N) of all."""
        return None if mask is None else self.gather(mask.to(torch.uint8)).bool()

    def from_first(self, x: Tensor) -> Tensor:
        """The first process's `x`, on all of them; of the others only the shape counts."""
        here = torch.tensor(self.rank == 0, device=x.device)
        return self.total(x.masked_fill(~here, 0.0))

    def shares(self, count: int) -> list[range]:
        """Which of `count` things each process takes: as many as the others, or one more."""
        each, more = divmod(count, len(self.lengths))
        starts = [each * rank + min(rank, more) for rank in range(len(self.lengths) + 1)]
        return [range(start, stop) for start, stop in pairwise(starts)]

    def to_channels(self, x: Tensor, wanted: Sequence[Sequence[int]] | None = None) -> Tensor:
        """From the own tokens (B, n, C) to all tokens of some of the channels, (B, N, c).

        Args:
            x: this process's tokens.
            wanted: the channels for each process; unset, `shares`.
        """
        shares = self.shares(x.shape[2])
        if wanted is not None and list(map(list, wanted)) != list(map(list, shares)):
            channels = [channel for share in wanted for channel in share]
            x = x.index_select(2, torch.tensor(channels, device=x.device))
        widths = [len(share) for share in wanted or shares]
        return self._transpose(x, widths, 2, list(self.lengths), 1)

    def to_tokens(self, y: Tensor, widths: list[int]) -> Tensor:
        """Undo `to_channels`: (B, N, c) -> (B, n, C), where each process holds so many channels."""
        return self._transpose(y, list(self.lengths), 1, widths, 2)

    def _transpose(
        self, x: Tensor, cut: list[int], cut_dim: int, joined: list[int], joined_dim: int
    ) -> Tensor:
        """Cut (B, ., .) along one dimension for the processes; join what comes along the other."""
        batch, own = len(x), cut[self.rank]
        packed = torch.cat([part.flatten() for part in x.split(cut, cut_dim)])
        sent = [batch * size * x.shape[joined_dim] for size in cut]
        received = [batch * own * size for size in joined]
        arrived = all_to_all(packed, received, sent, self.group).split(received)
        shapes = [(batch, size, own) if joined_dim == 1 else (batch, own, size) for size in joined]
        parts = [part.view(shape) for part, shape in zip(arrived, shapes, strict=True)]
        return torch.cat(parts, joined_dim)

    def exchange(self, x: Tensor, wanted: Sequence[Sequence[int] | Tensor]) -> Tensor:
        """Tokens by their positions, from wherever they are.

        Args:
            x: (B, n, ...) this process's tokens.
            wanted: the positions that each process wants, in any order; all processes know all of
                them. At a position below 0, or from N on, stand zeros.

        Returns:
            (B, tokens that this process wants, ...).
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
        """The position of the first token of each process."""
        return [0, *accumulate(self.lengths)][:-1]
