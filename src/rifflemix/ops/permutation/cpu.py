"""The permutation family in compiled CPU kernels.

The kernels are in ops/native. They save little for the backward pass: an index in 16 bits if N
allows it, one byte per pair of tokens. Second-order gradients use the eager formulas. The rank
filter is in `cpu_ranks`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import is_known, statically_known_true, take_first
from rifflemix.errors import bad_argument
from rifflemix.ops.native import instruction_level
from rifflemix.ops.operands import on_one_device
from rifflemix.ops.operator import operator
from rifflemix.ops.permutation import eager
from rifflemix.ops.permutation.cpu_common import FORMATS, new, run, supports
from rifflemix.ops.permutation.cpu_ranks import filters, rank_filter
from rifflemix.ops.permutation.operands import (
    check_index,
    check_index_dtype,
    check_pairs,
    check_positions,
    check_sort,
    check_swaps,
    check_tokens,
)
from rifflemix.ops.permutation.spec import Permuted, SortSpec

__all__ = [
    "SORTS_LONG_KEYS",
    "WORTH_A_CALL",
    "causal_shift",
    "channel_permute",
    "circular_shift",
    "filters",
    "group_sort",
    "max_exchange",
    "needs_sort",
    "rank_filter",
    "sort_with_index",
    "sorts",
    "supports",
    "unsort",
]

_BAD_INDEX = -2  # kBadIndex of native/kernels.h
# float32 and groups of more than 2^15 tokens need 64-bit keys. From AVX2 on, the kernel sorts these
# keys faster than torch sorts the values.
SORTS_LONG_KEYS = instruction_level() >= 3
_MOST_SHORT_KEYS = 1 << 15  # tokens per group, as in sort.cpp
WORTH_A_CALL = 1 << 12  # values; for fewer, torch is faster than the call of a kernel


def needs_sort(x: Tensor, num_groups: int, with_index: bool) -> bool:
    """Return whether a sort is needed.

    Pairs without an index need only one comparison.
    """
    return with_index or not statically_known_true(x.shape[1] == 2 * num_groups)


def sorts(x: Tensor, num_groups: int) -> bool:
    """Return whether a kernel supports keys of this length."""
    if SORTS_LONG_KEYS:
        return True
    return x.dtype != torch.float32 and x.shape[1] // num_groups <= _MOST_SHORT_KEYS


def circular_shift(x: Tensor, steps: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Roll channel c by steps[c] within the valid tokens of each sample."""
    return _shift(x, steps, mask), eager.shift_index(x, steps, mask) if with_index else None


def causal_shift(x: Tensor, steps: Tensor, longest: int) -> Tensor:
    """Append min(longest, N) zeros and roll, so that zeros enter at the front."""
    length = x.shape[1]
    zeros = min(longest, length) if is_known(length) else longest
    rolled = _shift(F.pad(x, (0, 0, 0, zeros)), steps.clamp(max=zeros), None)
    return take_first(rolled, length, 1)


def group_sort(x: Tensor, spec: SortSpec, mask: Tensor | None, with_index: bool) -> Permuted:
    """Sort each channel within groups of tokens."""
    return _permute(x, None, spec, mask, with_index)


def channel_permute(
    x: Tensor, steps: Tensor, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    """Shift, then sort."""
    return _permute(x, steps, spec, mask, with_index)


def _permute(
    x: Tensor, steps: Tensor | None, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    num_groups, by_reference, heads, descending = spec
    leaders = heads if by_reference else 0
    length = x.shape[1]
    wants_grad = torch.is_grad_enabled() and x.requires_grad
    if not with_index and statically_known_true(length == 2 * num_groups):  # as needs_sort
        return _sort_pairs(x, leaders, descending, mask, steps, wants_grad)[0], None
    index_dtype = None
    if with_index:
        index_dtype = torch.int64
    elif wants_grad:
        index_dtype = _short_index(length)
    y, index = _sort_groups(x, num_groups, leaders, descending, mask, steps, index_dtype)
    return y, index if with_index else None


def _short_index(length: int) -> torch.dtype:
    """Return the smallest index dtype for all positions."""
    return torch.uint16 if statically_known_true(length <= 1 << 16) else torch.int32


def sort_with_index(x: Tensor, num_groups: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sort each channel of each group; return values and a short index."""
    dtype = _short_index(x.shape[1])
    sorted_: tuple[Tensor, Tensor] = _sort_groups(x, num_groups, 0, None, mask, None, dtype)
    return sorted_


def unsort(y: Tensor, index: Tensor, mask: Tensor | None, num_groups: int) -> Tensor:
    """Invert `sort_with_index` for sorted values (B, N, C)."""
    back: Tensor = _scatter(y, index, mask, num_groups)
    return back


def max_exchange(x: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Swap the first valid token of each channel with the channel's largest."""
    largest = _first_largest(x.detach(), mask)
    first = eager.first_positions(largest, mask)
    y = _swap_positions(x, first, largest, mask)
    return y, eager.swap_index(x, first, largest) if with_index else None


# Group sort, and the scatter for its gradient.


@operator("rifflemix::group_sort", device_types="cpu")
def _sort_groups(
    x: Tensor,
    num_groups: int,
    leaders: int,
    descending: Tensor | None,
    mask: Tensor | None,
    steps: Tensor | None,
    index_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """Sort groups; return values and index.

    The index is empty if `index_dtype` is None. `leaders` is the number of heads with a reference
    channel; 0 means that every channel is sorted by its own values.
    """
    check_sort(x, FORMATS, num_groups, leaders, descending, mask, steps)
    check_index_dtype(index_dtype, x.shape[1])
    if steps is not None:
        x, before = new(x), x
        run("shift", before, y=x, mask=mask, steps=steps)
    y = new(x)
    index = new(x, None if index_dtype else (0,), index_dtype or torch.int64)
    run(
        "group_sort",
        x,
        x.shape[1] // num_groups,
        leaders,
        y=y,
        index=index,
        mask=mask,
        descending=descending,
        steps=steps,
    )
    return y, index


@_sort_groups.register_fake
@on_one_device
def _(
    x: Tensor,
    num_groups: int,
    leaders: int,
    descending: Tensor | None,
    mask: Tensor | None,
    steps: Tensor | None,
    index_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    index = x.new_empty(x.shape if index_dtype else (0,), dtype=index_dtype or torch.int64)
    return x.new_empty(x.shape), index


def _save_index(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, num_groups, _, _, mask, steps, _ = inputs
    # A shift can move tokens out of their group.
    ctx.num_groups = num_groups if steps is None else 1
    ctx.save_for_backward(output[1], mask)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate_sort(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:  # no gradient of the values
        return (None,) * 7
    index, mask = ctx.saved_tensors
    return _scatter(grad, index, mask, ctx.num_groups), None, None, None, None, None, None


_sort_groups.register_autograd(_differentiate_sort, setup_context=_save_index)


@operator("rifflemix::scatter", device_types="cpu")
def _scatter(grad: Tensor, index: Tensor, mask: Tensor | None, num_groups: int) -> Tensor:
    """Compute the gradient of `eager.take` for permutations within groups.

    If the index stays within groups but is not a permutation, some values are undefined.
    """
    check_sort(grad, FORMATS, num_groups, 0, None, mask, None)
    check_index(index, grad)
    out = new(grad)
    group_size = grad.shape[1] // num_groups
    found = run("scatter", grad, group_size, y=out, index=index, mask=mask)
    if found == _BAD_INDEX:
        raise bad_argument(
            "index", f"positions within each group of {group_size} tokens", "one outside"
        )
    return out


@_scatter.register_fake
@on_one_device
def _(grad: Tensor, index: Tensor, mask: Tensor | None, num_groups: int) -> Tensor:
    return grad.new_empty(grad.shape)


def _save_scatter(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:3])


def _differentiate_scatter(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    index, mask = ctx.saved_tensors
    return eager.take(grad, index.to(torch.int64), mask), None, None, None


_scatter.register_autograd(_differentiate_scatter, setup_context=_save_scatter)


# Sort of pairs, and the exchange for its gradient.


@operator("rifflemix::sort_pairs", device_types="cpu")
def _sort_pairs(
    x: Tensor,
    leaders: int,
    descending: Tensor | None,
    mask: Tensor | None,
    steps: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Sort pairs; return values and flags (B, N/2, C) of exchanged pairs.

    The flags are empty unless `keep` is True.
    """
    check_sort(x, FORMATS, 1, leaders, descending, mask, steps)
    batch, length, channels = x.shape
    if length % 2:
        check_pairs(x)
    y = new(x)
    kept = (batch, length // 2, channels)
    swaps = new(x, kept, torch.bool) if keep else x.new_empty((0,), dtype=torch.bool)
    run(
        "sort_pairs" if steps is None else "shift_sort_pairs",
        x,
        heads=leaders,
        y=y,
        swaps=swaps if keep else None,
        mask=mask,
        descending=descending,
        steps=steps,
    )
    return y, swaps


@_sort_pairs.register_fake
@on_one_device
def _(
    x: Tensor,
    leaders: int,
    descending: Tensor | None,
    mask: Tensor | None,
    steps: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    batch, length, channels = x.shape
    shape = (batch, length // 2, channels) if keep else (0,)
    return x.new_empty(x.shape), x.new_empty(shape, dtype=torch.bool)


def _save_swaps(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, _, mask, steps, _ = inputs
    ctx.save_for_backward(output[1], mask, steps)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate_pairs(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    swaps, mask, steps = ctx.saved_tensors
    back = None if steps is None else -steps
    return _exchange_pairs(grad, swaps, mask, back), None, None, None, None, None


_sort_pairs.register_autograd(_differentiate_pairs, setup_context=_save_swaps)


@operator("rifflemix::exchange_pairs", device_types="cpu")
def _exchange_pairs(
    grad: Tensor, swaps: Tensor, mask: Tensor | None, steps: Tensor | None
) -> Tensor:
    """Exchange the marked pairs, zero the padding, then shift by `steps`."""
    check_tokens("grad", grad, FORMATS, mask, steps)
    check_swaps(swaps, grad)
    out = new(grad)
    kernel = "exchange_pairs" if steps is None else "exchange_pairs_shift"
    run(kernel, grad, y=out, swaps=swaps, mask=mask, steps=steps)
    return out


@_exchange_pairs.register_fake
@on_one_device
def _(grad: Tensor, swaps: Tensor, mask: Tensor | None, steps: Tensor | None) -> Tensor:
    return grad.new_empty(grad.shape)


def _save_exchange(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate_exchange(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    swaps, mask, steps = ctx.saved_tensors
    if steps is not None:
        grad, _ = eager.circular_shift(grad, -steps, mask, with_index=False)
    return eager.exchange_pairs(grad, swaps, mask), None, None, None


_exchange_pairs.register_autograd(_differentiate_exchange, setup_context=_save_exchange)


# Shift without a sort. The gradient is a shift by the negative steps.


@operator("rifflemix::circular_shift", device_types="cpu")
def _shift(x: Tensor, steps: Tensor, mask: Tensor | None) -> Tensor:
    check_tokens("x", x, FORMATS, mask, steps)
    y = new(x)
    run("shift", x, y=y, steps=steps, mask=mask)
    return y


@_shift.register_fake
@on_one_device
def _(x: Tensor, steps: Tensor, mask: Tensor | None) -> Tensor:
    return x.new_empty(x.shape)


def _save_steps(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate_shift(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    steps, mask = ctx.saved_tensors
    return _shift(grad, -steps, mask), None, None


_shift.register_autograd(_differentiate_shift, setup_context=_save_steps)


@operator("rifflemix::first_largest", device_types="cpu")
def _first_largest(x: Tensor, mask: Tensor | None) -> Tensor:
    check_tokens("x", x, FORMATS, mask, None)
    index = new(x, (x.shape[0], 1, x.shape[2]), torch.int64)
    run("first_largest", x, index=index, mask=mask)
    return index


@_first_largest.register_fake
@on_one_device
def _(x: Tensor, mask: Tensor | None) -> Tensor:
    return x.new_empty((x.shape[0], 1, x.shape[2]), dtype=torch.int64)


# Swap of two positions. The gradient is the same swap.


@operator("rifflemix::swap_positions", device_types="cpu")
def _swap_positions(x: Tensor, first: Tensor, second: Tensor, mask: Tensor | None) -> Tensor:
    """Swap two positions, (B, 1, C) each, with one copy; padding becomes zero."""
    check_tokens("x", x, FORMATS, mask, None)
    check_positions("first", first, x)
    check_positions("second", second, x)
    y = new(x).copy_(x)
    y.scatter_(1, second, x.gather(1, first)).scatter_(1, first, x.gather(1, second))
    return y if mask is None else y.masked_fill_(mask.unsqueeze(-1), 0.0)


@_swap_positions.register_fake
@on_one_device
def _(x: Tensor, first: Tensor, second: Tensor, mask: Tensor | None) -> Tensor:
    return x.new_empty(x.shape)


def _save_positions(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate_swap(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    first, second, mask = ctx.saved_tensors
    return _swap_positions(grad, first, second, mask), None, None, None


_swap_positions.register_autograd(_differentiate_swap, setup_context=_save_positions)
