"""Soft sorts and ranks in plain torch: projections onto the permutahedron, for all columns at once.

All computations use float64, because the sums of a soft sort's steps can far exceed the values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import as_constant
from rifflemix.ops.permutation import eager

_STEEPEST = 1e300


def soft_sort(x: Tensor, num_groups: int, temperature: float, mask: Tensor | None) -> Tensor:
    """Sort each group with steps of at most 1 / temperature."""
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
    """Rank the values of each group, with smooth ranks of close values."""
    columns = _Columns(x, num_groups, mask)
    values, ranks = columns.values, columns.ranks
    inverse = min(1 / temperature, _STEEPEST)
    sizes, mean, centre = columns.pool(values.detach() - ranks * temperature)
    apart = torch.where(sizes == 1, 0.0, (values - mean) * inverse)
    y = columns.marked(centre + apart).gather(3, eager.invert(columns.order, dim=3))
    return _ungrouped(y, x, mask)


class _Columns:
    """Ascending values (B, K, C, G) of each group and channel, with padding last."""

    def __init__(self, x: Tensor, num_groups: int, mask: Tensor | None) -> None:
        # The number of merge steps depends on the length, so a traced graph fixes the length.
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
        """Return `y` with NaN in columns with an infinity or NaN."""
        return y + torch.zeros_like(y).masked_fill(~self.is_number, torch.nan)

    def pool(self, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sizes, mean values and mean ranks of the fitted blocks."""
        # A column with an infinity or NaN becomes one block. Padding does not join a block.
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
    """Mark the block starts of the nondecreasing least-squares fit to columns (..., G).

    Two adjacent fitted halves are merged by one mean m. Values above m on the left and values below
    m on the right become m. All other values stay unchanged.
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
    """Compute the mean of the block between two ascending halves (..., W).

    If the halves are already in order, the result is a value between them. The block contains the
    last p values on the left and the first q values on the right. For a left value v, its excess is
    the sum of (u - v) over larger left values u. Its deficit is the sum of (v - r) over smaller
    right values r. v is in the block if its excess is less than its deficit. q minimizes the mean.
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
