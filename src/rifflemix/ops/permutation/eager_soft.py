"""Soft sorts and ranks in plain torch: projections onto the permutahedron, all columns at once.

All is computed in float64: the steps of a soft sort add up to many times the values they fit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import as_constant
from rifflemix.ops.permutation import eager

_STEEPEST = 1e300


def soft_sort(x: Tensor, num_groups: int, temperature: float, mask: Tensor | None) -> Tensor:
    """Sorted values of each group, of which none rises by more than the temperature allows."""
    columns = _Columns(x, num_groups, mask)
    values, ranks = columns.values, columns.ranks
    slope = min(1 / temperature, _STEEPEST)
    sizes, mean, centre = columns.pool(ranks * slope - values.detach())
    y = columns.marked(torch.where(sizes == 1, values, mean + (ranks - centre) * slope))
    if mask is not None:
        padded = torch.unflatten(mask, 1, (num_groups, -1))
        y = y.gather(3, eager.valid_first(padded, dim=2).unsqueeze(2).expand_as(y))
    return _ungrouped(y, x, mask)


def soft_rank(x: Tensor, num_groups: int, temperature: float, mask: Tensor | None) -> Tensor:
    """Ranks in each group, of which neighbours may differ by less than one."""
    columns = _Columns(x, num_groups, mask)
    values, ranks = columns.values, columns.ranks
    inverse = min(1 / temperature, _STEEPEST)
    sizes, mean, centre = columns.pool(values.detach() - ranks * temperature)
    apart = torch.where(sizes == 1, 0.0, (values - mean) * inverse)
    y = columns.marked(centre + apart).gather(3, eager.invert(columns.order, dim=3))
    return _ungrouped(y, x, mask)


class _Columns:
    """The values of each group and channel in ascending order, (B, K, C, G), padding last."""

    def __init__(self, x: Tensor, num_groups: int, mask: Tensor | None) -> None:
        # How often halves are joined depends on the length: a traced graph holds for one.
        groups = (num_groups, as_constant(x.shape[1]) // num_groups)
        self.order = eager.group_order(x, None, mask, groups).transpose(2, 3)
        grouped = torch.unflatten(x.double(), 1, groups).transpose(2, 3)
        self.values = grouped.gather(3, self.order)
        self.ranks = torch.arange(groups[1], device=x.device, dtype=torch.float64)
        self.valid = torch.ones_like(self.ranks, dtype=torch.bool)
        if mask is not None:
            count = (~torch.unflatten(mask, 1, groups)).sum(2)
            self.valid = (self.ranks < count.unsqueeze(2)).unsqueeze(2)
        finite = self.values.isfinite() | ~self.valid
        self.is_number = finite.all(3, keepdim=True)

    def marked(self, y: Tensor) -> Tensor:
        """`y`, with NaN where a column holds an infinity or NaN and so has no projection."""
        return y + torch.zeros_like(y).masked_fill(~self.is_number, torch.nan)

    def pool(self, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The blocks of the nondecreasing fit to `wanted`: sizes, mean values and mean ranks."""
        # What is no column of numbers is one block, and padding joins none.
        wanted = torch.where(self.is_number, wanted, -self.ranks)
        lowest = torch.finfo(wanted.dtype).min
        top = wanted.masked_fill(~self.valid, lowest).amax(3, keepdim=True)
        start = _block_starts(torch.where(self.valid, wanted, top))
        block = start.cumsum(3) - 1
        sizes, sums, ranks = (
            torch.zeros_like(wanted).scatter_add(3, block, each).gather(3, block)
            for each in (torch.ones_like(wanted), self.values, self.ranks.expand_as(wanted))
        )
        return sizes, sums / sizes, ranks / sizes


def _ungrouped(y: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
    return eager.zero_padding(y.transpose(2, 3).flatten(1, 2).to(x.dtype), mask)


def _block_starts(wanted: Tensor) -> Tensor:
    """Where the blocks of the nondecreasing least-squares fit to (..., G) columns start, (..., G).

    Halves that are fitted are fitted together by one mean m: what is above it on the left and
    below it on the right becomes m, and nothing else moves.
    """
    size, width = wanted.shape[-1], 1
    while width < size:
        width *= 2
    top = wanted.amax(-1, keepdim=True)
    fit = torch.cat((wanted, top.expand(*wanted.shape[:-1], width - size)), -1)
    start = torch.ones_like(fit, dtype=torch.bool)
    width = 1
    while width < size:
        left, right = torch.unflatten(fit, -1, (-1, 2, width)).unbind(-2)
        mean = _common_mean(left, right)
        pooled = torch.cat((left > mean, right < mean), -1)
        joined = torch.cat(
            (torch.zeros_like(pooled[..., :1]), pooled[..., :-1] & pooled[..., 1:]), -1
        )
        start = start & ~joined.flatten(-2)
        fit = torch.cat((left.minimum(mean), right.maximum(mean)), -1).flatten(-2)
        width *= 2
    return start[..., :size]


def _common_mean(left: Tensor, right: Tensor) -> Tensor:
    """(..., 1): the mean of the block where two ascending (..., W) meet; between them if in order.

    The last p on the left are in it: all whose excess over the p-th is less than what is missing to
    it on the right. Of the first q on the right are as many as make the mean lowest.
    """
    pivot = left[..., -1:]
    downward = (left - pivot).flip(-1).contiguous()
    upward = (right - pivot).contiguous()
    counts = torch.arange(1, left.shape[-1] + 1, device=left.device)
    above, below = downward.cumsum(-1), upward.cumsum(-1)
    lower = torch.searchsorted(upward, downward)
    missing = downward * lower - F.pad(below, (1, 0)).gather(-1, lower)
    taken = (above - counts * downward < missing).sum(-1, keepdim=True)
    taken = torch.where(upward[..., :1] < 0, taken.clamp(min=1), 0)
    sums = above.gather(-1, (taken - 1).clamp(min=0)) + below
    mean = (sums / (taken + counts)).amin(-1, keepdim=True)
    return pivot + torch.where(taken > 0, mean, 0.0)
