"""The permutation family in compiled CPU kernels.

The kernels are in ops/native. They save little for the backward pass: an index in 16 bits if N
allows it, one byte per pair of tokens. Second-order gradients use the eager formulas. The rank
filter needs one byte per value for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_divides, check_integer
from rifflemix.compat import is_known, statically_known_true, take_first
from rifflemix.errors import bad_argument
from rifflemix.ops.native import instruction_level
from rifflemix.ops.permutation import eager
from rifflemix.ops.permutation.arguments import Permuted, SortSpec, check_sort
from rifflemix.ops.permutation.cpu_common import call_kernel, define_on_cpu, empty_output

_BAD_INDEX = -2  # kBadIndex of native/kernels.h
_INDICES = (None, torch.uint16, torch.int32, torch.int64)
_UINT16_POSITIONS = 1 << 16
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


def has_short_keys(x: Tensor, num_groups: int) -> bool:
    """Return whether the keys of a sort have 32 bits."""
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


def permute(
    x: Tensor, steps: Tensor | None, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    """Shift channels unless `steps` is None, then sort each channel within groups of tokens."""
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
        is_short = statically_known_true(length <= _UINT16_POSITIONS)
        index_dtype = torch.uint16 if is_short else torch.int32
    y, index = _sort_groups(x, num_groups, leaders, descending, mask, steps, index_dtype)
    return y, index if with_index else None


def max_exchange(x: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Swap the first valid token of each channel with the channel's largest."""
    largest = _first_largest(x.detach(), mask)
    first = eager.first_positions(largest, mask)
    y = _swap_positions(x, first, largest, mask)
    return y, eager.swap_index(x, first, largest) if with_index else None


# Group sort, and the scatter for its gradient.


def _scatter_gradient(index: Tensor, mask: Tensor | None, grad: Tensor) -> Tensor:
    return eager.take(grad, index.to(torch.int64), mask)


@define_on_cpu(
    "scatter",
    shapes="grad: B N C, index: B N C uint16|int32|int64, mask: B N bool",
    check=lambda grad, index, mask, num_groups: check_sort(grad, num_groups),
    like="grad",
    saves="index mask",
    backward=_scatter_gradient,
)
def _scatter(grad: Tensor, index: Tensor, mask: Tensor | None, num_groups: int) -> Tensor:
    """Compute the gradient of `eager.take` for permutations within groups.

    If the index stays within groups but is not a permutation, some values are undefined.
    """
    out = empty_output(grad)
    group_size = grad.shape[1] // num_groups
    found = call_kernel("scatter", grad, group_size, y=out, index=index, mask=mask)
    if found == _BAD_INDEX:
        raise bad_argument(
            "index", f"positions within each group of {group_size} tokens", "one outside"
        )
    return out


def _check_groups(x: Tensor, *settings: Any) -> None:
    num_groups, leaders, *_, index_dtype = settings
    check_sort(x, num_groups, leaders)
    if index_dtype not in _INDICES:
        raise bad_argument("index_dtype", "uint16, int32 or int64", index_dtype)
    if index_dtype is torch.uint16 and x.shape[1] > _UINT16_POSITIONS:
        expected = f"int32 or int64 for {x.shape[1]:,} tokens"
        raise bad_argument("index_dtype", expected, index_dtype)


def _empty_groups(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    index_dtype = settings[-1]
    index = x.new_empty(x.shape if index_dtype else (0,), dtype=index_dtype or torch.int64)
    return x.new_empty(x.shape), index


def _sort_gradient(
    index: Tensor, mask: Tensor | None, steps: Tensor | None, num_groups: int, grad: Tensor
) -> Any:
    # A shift can move tokens out of their group.
    return _scatter(grad, index, mask, num_groups if steps is None else 1)


@define_on_cpu(
    "group_sort",
    shapes="x: B N C, descending: C bool, mask: B N bool, steps: C int64",
    check=_check_groups,
    like=_empty_groups,
    outputs="y | index",
    saves="index mask steps num_groups",
    backward=_sort_gradient,
)
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
    if steps is not None:
        x, before = empty_output(x), x
        call_kernel("shift", before, y=x, mask=mask, steps=steps)
    y = empty_output(x)
    index = empty_output(x, None if index_dtype else (0,), index_dtype or torch.int64)
    call_kernel(
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


# Sort of pairs, and the exchange for its gradient.


def _check_exchange(grad: Tensor, *_: Any) -> dict[str, int]:
    if grad.shape[1] % 2:
        raise bad_argument("grad", "an even number of tokens N", grad.shape[1])
    return {"PAIRS": grad.shape[1] // 2}


def _exchange_gradient(
    swaps: Tensor, mask: Tensor | None, steps: Tensor | None, grad: Tensor
) -> Tensor:
    if steps is not None:
        grad, _ = eager.circular_shift(grad, -steps, mask, with_index=False)
    return eager.exchange_pairs(grad, swaps, mask)


@define_on_cpu(
    "exchange_pairs",
    shapes="grad: B N C, swaps: B PAIRS C bool, mask: B N bool, steps: C int64",
    check=_check_exchange,
    like="grad",
    saves="swaps mask steps",
    backward=_exchange_gradient,
)
def _exchange_pairs(
    grad: Tensor, swaps: Tensor, mask: Tensor | None, steps: Tensor | None
) -> Tensor:
    """Exchange the marked pairs, zero the padding, then shift by `steps`."""
    out = empty_output(grad)
    kernel = "exchange_pairs" if steps is None else "exchange_pairs_shift"
    call_kernel(kernel, grad, y=out, swaps=swaps, mask=mask, steps=steps)
    return out


def _check_pairs(x: Tensor, leaders: int, *_: Any) -> None:
    if leaders and (leaders < 0 or x.shape[2] % leaders):
        check_divides("heads", leaders, x.shape[2], "the number of channels C")
    if x.shape[1] % 2:
        raise bad_argument("x", "an even number of tokens N", x.shape[1])


def _empty_pairs(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    batch, length, channels = x.shape
    shape = (batch, length // 2, channels) if settings[-1] else (0,)
    return x.new_empty(x.shape), x.new_empty(shape, dtype=torch.bool)


def _pairs_gradient(swaps: Tensor, mask: Tensor | None, steps: Tensor | None, grad: Tensor) -> Any:
    return _exchange_pairs(grad, swaps, mask, None if steps is None else -steps)


@define_on_cpu(
    "sort_pairs",
    shapes="x: B N C, descending: C bool, mask: B N bool, steps: C int64",
    check=_check_pairs,
    like=_empty_pairs,
    outputs="y | swaps",
    saves="swaps mask steps",
    backward=_pairs_gradient,
)
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
    y = empty_output(x)
    if keep:
        swaps = empty_output(x, (x.shape[0], x.shape[1] // 2, x.shape[2]), torch.bool)
    else:
        swaps = torch.empty(0, dtype=torch.bool, device=x.device)
    call_kernel(
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


# Shift without a sort. The gradient is a shift by the negative steps.


def _shift_gradient(steps: Tensor, mask: Tensor | None, grad: Tensor) -> Any:
    return _shift(grad, -steps, mask)


@define_on_cpu(
    "circular_shift",
    shapes="x: B N C, steps: C int64, mask: B N bool",
    like="x",
    saves="steps mask",
    backward=_shift_gradient,
)
def _shift(x: Tensor, steps: Tensor, mask: Tensor | None) -> Tensor:
    y = empty_output(x)
    call_kernel("shift", x, y=y, steps=steps, mask=mask)
    return y


# Swap of the first token and the largest token. The gradient is the same swap.


@define_on_cpu(
    "first_largest",
    shapes="x: B N C, mask: B N bool",
    like=lambda x, mask: x.new_empty((x.shape[0], 1, x.shape[2]), dtype=torch.int64),
)
def _first_largest(x: Tensor, mask: Tensor | None) -> Tensor:
    index = empty_output(x, (x.shape[0], 1, x.shape[2]), torch.int64)
    call_kernel("first_largest", x, index=index, mask=mask)
    return index


def _swap_gradient(first: Tensor, second: Tensor, mask: Tensor | None, grad: Tensor) -> Any:
    return _swap_positions(grad, first, second, mask)


@define_on_cpu(
    "swap_positions",
    shapes="x: B N C, first: B 1 C int64, second: B 1 C int64, mask: B N bool",
    like="x",
    saves="first second mask",
    backward=_swap_gradient,
)
def _swap_positions(x: Tensor, first: Tensor, second: Tensor, mask: Tensor | None) -> Tensor:
    """Swap two positions, (B, 1, C) each, with one copy; padding becomes zero."""
    y = empty_output(x).copy_(x)
    y.scatter_(1, second, x.gather(1, first)).scatter_(1, first, x.gather(1, second))
    return y if mask is None else y.masked_fill_(mask.unsqueeze(-1), 0.0)


_MOST_WINDOW = 256  # tokens, so that a distance within the window fits a byte


def filters(window_size: int) -> bool:
    """Return whether the kernel supports this window size."""
    return window_size <= _MOST_WINDOW


def rank_filter(x: Tensor, ranks: Tensor, window_size: int) -> Tensor:
    """Select the token of each channel's rank among the last `window_size` tokens."""
    wants_grad = torch.is_grad_enabled() and x.requires_grad
    return _rank_filter(x, ranks, window_size, wants_grad)[0]


def _check_window(x: Tensor, other: Tensor, window_size: int, *_: Any) -> None:
    check_integer("window_size", window_size, 1, _MOST_WINDOW)


@define_on_cpu(
    "rank_filter_back",
    shapes="grad: B N C, back: B N C uint8",
    check=_check_window,
    like="grad",
    saves="back",
    backward=lambda back, grad: eager.take_back(grad, back.to(torch.int64)),
)
def _collect(grad: Tensor, back: Tensor, window_size: int) -> Tensor:
    """Compute the gradient of `eager.take_back`.

    It sums, for each token, over all positions that selected the token.
    """
    out = empty_output(grad)
    call_kernel("rank_filter_back", grad, window_size, y=out, index=back)
    return out


def _empty_outputs(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    keep = settings[-1]
    return x.new_empty(x.shape), x.new_empty(x.shape if keep else (0,), dtype=torch.uint8)


@define_on_cpu(
    "rank_filter",
    shapes="x: B N C, ranks: C int64",
    check=_check_window,
    like=_empty_outputs,
    outputs="y | back",
    saves="back window_size",
    backward=lambda back, window_size, grad: _collect(grad, back, window_size),
)
def _rank_filter(x: Tensor, ranks: Tensor, window_size: int, keep: bool) -> tuple[Tensor, Tensor]:
    """Return the values and their distances to the source tokens, (B, N, C) uint8.

    The distances are empty unless `keep` is True.
    """
    y = empty_output(x)
    back = empty_output(x, None if keep else (0,), torch.uint8)
    call_kernel("rank_filter", x, window_size, y=y, index=back, steps=ranks)
    return y, back
