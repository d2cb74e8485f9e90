"""The permutation family in plain torch, for any device.

Permutations return (y, index). The index is None unless `with_index` is True, because the index can
cost more than y.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import (
    as_operand,
    leaves_package,
    running_count,
    stable_order,
    statically_known_true,
)
from rifflemix.ops.permutation.arguments import Permuted, SortSpec

KEY_DTYPES = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


def take(x: Tensor, index: Tensor, mask: Tensor | None) -> Tensor:
    """Gather x along the tokens and set padded positions to zero."""
    return zero_padding(x.gather(1, index), mask)


def circular_shift(x: Tensor, steps: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Roll channel c by steps[c] within the valid tokens of each sample."""
    index = shift_index(x, steps, mask)
    return take(x, index, mask), index if with_index else None


def permute(
    x: Tensor, steps: Tensor | None, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    """Shift channels unless `steps` is None, then sort each channel within groups of tokens."""
    if steps is not None:
        shift = shift_index(x, steps, mask)
        y, index = permute(take(x, shift, mask), None, spec, mask, with_index)
        return y, None if index is None else shift.gather(1, index)
    if statically_known_true(x.shape[1] == 2 * spec.num_groups):
        return _sort_pairs(x, spec, mask, with_index)
    index = _sort_index(x, spec, mask)
    return take(x, index, mask), index if with_index else None


def causal_shift(x: Tensor, steps: Tensor, longest: int) -> Tensor:
    """Delay channel c by steps[c] tokens (at most `longest`) and fill with zeros."""
    index = torch.arange(x.shape[1], device=x.device)[:, None] + (longest - steps)
    return F.pad(x, (0, 0, longest, 0)).gather(1, index.expand(x.shape))


def rank_filter(x: Tensor, ranks: Tensor, window_size: int) -> Tensor:
    """Select the token of each channel's rank among the last `window_size` tokens."""
    length = x.shape[1]
    inside = torch.arange(window_size, device=x.device)
    index = (torch.arange(length, device=x.device)[:, None] + inside).flatten()
    windows = F.pad(x.detach(), (0, 0, window_size - 1, 0)).index_select(1, index)
    place = _place_of_rank(windows, ranks, (length, window_size)).squeeze(2)
    return take_back(x, window_size - 1 - place)


def token_of_rank(window: Tensor, ranks: Tensor) -> Tensor:
    """Select the token (B, C) of each channel's rank in a window.

    `window` is (B, G, C), oldest token first.
    """
    place = _place_of_rank(window.detach(), ranks, (1, window.shape[1])).squeeze(1)
    return window.gather(1, place).squeeze(1)


def _place_of_rank(windows: Tensor, ranks: Tensor, groups: tuple[int, int]) -> Tensor:
    """Find the position (B, K, 1, C) of each channel's rank in each group.

    `windows` is (B, K G, C).
    """
    order = group_order(windows, None, None, groups)
    return order.gather(2, ranks.expand_as(order[:, :, :1]))


def take_back(x: Tensor, back: Tensor) -> Tensor:
    """Gather (B, N, C) tokens `back` positions earlier, zero before the first token."""
    index = torch.arange(x.shape[1], device=x.device)[:, None] - back
    return x.gather(1, index.clamp(min=0)).masked_fill(index < 0, 0.0)


def max_exchange(x: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Swap the first valid token of each channel with the channel's largest."""
    largest = _largest_positions(x, mask)
    first = first_positions(largest, mask)
    y = zero_padding(_swap(x, first, largest), mask)
    return y, swap_index(x, first, largest) if with_index else None


def first_positions(largest: Tensor, mask: Tensor | None) -> Tensor:
    """Find the first valid position (B, 1, C) of each sample."""
    if mask is None:
        return torch.zeros_like(largest)
    return mask.to(torch.int32).argmin(dim=1)[:, None, None].expand_as(largest)


def swap_index(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Compute the index (B, N, C) that swaps two positions of each channel."""
    positions = torch.arange(x.shape[1], device=x.device)[:, None].expand(x.shape)
    return _swap(positions, first, second)


def _swap(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return x.scatter(1, second, x.gather(1, first)).scatter(1, first, x.gather(1, second))


def _largest_positions(x: Tensor, mask: Tensor | None) -> Tensor:
    """Find the first position (B, 1, C) of each channel's largest valid value."""
    if mask is None:
        return x.detach().argmax(dim=1, keepdim=True)
    if leaves_package():
        return _largest_by_value(x.detach(), mask.unsqueeze(-1))
    key = ordered_key(x)
    lowest = torch.iinfo(key.dtype).min
    return key.masked_fill(mask.unsqueeze(-1), lowest).argmax(dim=1, keepdim=True)


def ordered_key(x: Tensor) -> Tensor:
    """Map values to integers of the same width and order.

    -0.0 equals 0.0, NaN is the largest.

    The keys never use the smallest and the largest integer, so that these can mark padding.
    """
    x = x.detach().resolve_neg()
    bits = x.view(KEY_DTYPES[x.dtype])
    top = torch.iinfo(bits.dtype).max
    # Read as integers, the bits of floats ascend for positive values and descend for negative ones.
    key = torch.where(bits < 0, bits ^ top, bits)
    return key.masked_fill(x == 0, 0).masked_fill(x.isnan(), top - 1)


def sort_key(x: Tensor, descending: Tensor | None, mask: Tensor | None) -> Tensor:
    """Compute keys for an ascending stable sort: numbers, then NaN, then padding."""
    key = ordered_key(x)
    top = torch.iinfo(key.dtype).max
    if descending is not None:
        key = torch.where(descending & ~x.isnan(), ~key, key)
    return key if mask is None else key.masked_fill(mask.unsqueeze(-1), top)


def _sort_index(x: Tensor, spec: SortSpec, mask: Tensor | None) -> Tensor:
    """Compute the index (B, N, C) of the source token of each position.

    A sort gives the token of each rank in a group, and each position reads the token of one rank.
    Padded tokens have the last ranks, in the order of their positions. Padded positions read the
    same ranks in the same order, so padding maps to itself.
    """
    groups = (spec.num_groups, x.shape[1] // spec.num_groups)
    order = group_order(x, spec.descending, mask, groups)
    if spec.by_reference:
        per_head = torch.unflatten(order, 3, (spec.heads, -1))
        ranks = invert(per_head[..., 0], dim=2).unsqueeze(-1).expand_as(per_head)
        order = per_head.gather(2, ranks).flatten(3)
    elif mask is not None:
        ranks = valid_first(torch.unflatten(mask, 1, groups), dim=2)
        order = order.gather(2, ranks.unsqueeze(-1).expand_as(order))
    starts = torch.arange(groups[0], device=x.device) * groups[1]
    return (order + starts[:, None, None]).flatten(1, 2)


def group_order(
    x: Tensor, descending: Tensor | None, mask: Tensor | None, groups: tuple[int, int]
) -> Tensor:
    """Compute the position (B, K, G, C) of each rank in each group."""
    if leaves_package():
        return _order_by_value(x.detach(), descending, mask, groups)
    keys = torch.unflatten(sort_key(x, descending, mask), 1, groups)
    return keys.sort(dim=2, stable=True).indices


# Other runtimes cannot read the bits of a float as an integer, and their order of NaN can differ.
# Exported graphs therefore sort only numbers, and then move NaN and padding behind them.


def _order_by_value(
    x: Tensor, descending: Tensor | None, mask: Tensor | None, groups: tuple[int, int]
) -> Tensor:
    """Compute (B, K, G, C), the order of `sort_key` in each group, without keys."""
    kind = x.isnan().to(torch.int64)
    if mask is not None:
        kind = kind.masked_fill(mask.unsqueeze(-1), 2)
    x = x if descending is None else torch.where(descending, -x, x)
    kind = torch.unflatten(kind, 1, groups)
    numbers = torch.unflatten(x, 1, groups).masked_fill(kind > 0, torch.inf)
    order = stable_order(numbers, 2)
    kind = kind.gather(2, order)
    rank, before = torch.zeros_like(kind), torch.zeros_like(kind[:, :, :1])
    for this in range(2 if mask is None else 3):
        is_this = (kind == this).to(torch.int64)
        rank = rank + is_this * (before + is_this.cumsum(2) - 1)
        before = before + is_this.sum(2, keepdim=True)
    return order.gather(2, invert(rank, dim=2))


def _largest_by_value(x: Tensor, padded: Tensor) -> Tensor:
    """Find the first position (B, 1, C) of each channel's largest valid value.

    NaN is the largest value. Unlike `ordered_key`, this needs no bits of floats.
    """
    nan = x.isnan() & ~padded
    numbers = x.masked_fill(padded | nan, -torch.inf)
    best = (numbers == numbers.amax(1, keepdim=True)) & ~padded & ~nan
    best = torch.where(nan.any(1, keepdim=True), nan, best)
    return best.to(torch.int32).argmax(1, keepdim=True)


def _sort_pairs(x: Tensor, spec: SortSpec, mask: Tensor | None, with_index: bool) -> Permuted:
    """Sort groups of two tokens with one comparison per pair."""
    pairs = torch.unflatten(x, 1, (-1, 2))
    swap = _out_of_order(pairs.detach(), spec.descending)
    if spec.by_reference:
        per_head = torch.unflatten(swap, 2, (spec.heads, -1))
        swap = (per_head ^ per_head[..., :1]).flatten(2)
    if mask is not None:
        swap = swap & ~torch.unflatten(mask, 1, (-1, 2)).any(dim=2).unsqueeze(-1)
    y = exchange_pairs(x, swap, mask)
    if not with_index:
        return y, None
    positions = torch.unflatten(torch.arange(x.shape[1], device=x.device), 0, (-1, 2))
    return y, _exchange(positions[None, :, :, None], swap)


def exchange_pairs(x: Tensor, swap: Tensor, mask: Tensor | None) -> Tensor:
    """Exchange the tokens of each pair for which `swap` (B, N/2, C) is True."""
    return zero_padding(_exchange(torch.unflatten(x, 1, (-1, 2)), swap), mask)


def _out_of_order(pairs: Tensor, descending: Tensor | None) -> Tensor:
    """Mark the pairs that are out of order.

    (B, K, 2, C) -> (B, K, C) bool.
    """
    first, second = pairs.unbind(2)
    in_order = first <= second
    if descending is not None:
        in_order = torch.where(descending, first >= second, in_order)
    # A comparison with NaN is False. A pair with NaN is out of order only if NaN precedes a number.
    return ~in_order & (second == second)


def _exchange(pairs: Tensor, swap: Tensor) -> Tensor:
    first, second = pairs.unbind(2)
    exchanged = (torch.where(swap, second, first), torch.where(swap, first, second))
    return torch.stack(exchanged, dim=2).flatten(1, 2)


def shift_index(x: Tensor, steps: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the index (B, N, C) of a circular shift."""
    length = x.shape[1]
    positions = torch.arange(length, device=x.device)
    if mask is None:
        return ((positions[:, None] - steps) % as_operand(length, x.device)).expand(x.shape)
    ranks = valid_first(mask, dim=1)
    position_of_rank = invert(ranks, dim=1).unsqueeze(-1).expand(x.shape)
    num_valid = (~mask).sum(dim=1).clamp(min=1)
    index = position_of_rank.gather(1, (ranks.unsqueeze(-1) - steps) % num_valid[:, None, None])
    return torch.where(mask.unsqueeze(-1), positions[:, None], index)


def valid_first(mask: Tensor, dim: int) -> Tensor:
    """Rank the positions in order, valid before padded positions."""
    valid = ~mask
    among_padding = running_count(mask, dim) + valid.sum(dim, keepdim=True)
    return torch.where(valid, running_count(valid, dim), among_padding) - 1


def invert(permutation: Tensor, dim: int) -> Tensor:
    shape = [1] * permutation.dim()
    shape[dim] = -1
    positions = torch.arange(permutation.shape[dim], device=permutation.device).view(shape)
    return torch.empty_like(permutation).scatter(dim, permutation, positions.expand_as(permutation))


def zero_padding(y: Tensor, mask: Tensor | None) -> Tensor:
    return y if mask is None else torch.where(mask.unsqueeze(-1), 0.0, y)
