"""The permutation family on a GPU: what `eager` computes, to the last bit but those inside NaN.

The order is kept for the backward as a code of one or two bytes an element: in pairs whether they
were exchanged, else each token's former position within its group.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from torch import Tensor

from rifflemix.ops.operands import check_operand, on_one_device
from rifflemix.ops.operator import operator
from rifflemix.ops.permutation import eager
from rifflemix.ops.permutation import triton_kernels as kernels
from rifflemix.ops.permutation import triton_value_kernels as value_kernels
from rifflemix.ops.permutation.operands import check_sort, check_tokens
from rifflemix.ops.permutation.spec import Permuted, SortSpec
from rifflemix.ops.permutation.triton_limits import (
    BITS,
    INFINITY_BITS,
    MAX_OFFSET,
    check_limits,
)
from rifflemix.ops.triton_support import INTERPRETED, launch

Arguments = tuple[Any, ...]

_ROW_TILE = {"ROWS": 8, "CHANNELS": 128, "num_warps": 4}
# Up to this many tokens a backward that sorts costs less than one that writes single values.
_MAX_UNSORTED = 256


def circular_shift(x: Tensor, steps: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Roll channel c by steps[c]; `mask` is None."""
    y: Tensor = _shift(x, steps)
    return y, eager.shift_index(x, steps, mask) if with_index else None


def group_sort(x: Tensor, spec: SortSpec, mask: Tensor | None, with_index: bool) -> Permuted:
    """Sort each channel within groups of tokens."""
    return _permute(x, None, spec, mask, with_index)


def channel_permute(
    x: Tensor, steps: Tensor, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    """Shift and sort in one kernel; where there is padding, shift by torch."""
    if mask is None:
        return _permute(x, steps, spec, None, with_index)
    index = eager.shift_index(x, steps, mask)
    y, sorting = _permute(eager.take(x, index, mask), None, spec, mask, with_index)
    return y, None if sorting is None else index.gather(1, sorting)


def _permute(
    x: Tensor, steps: Tensor | None, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    with_code = with_index or (torch.is_grad_enabled() and x.requires_grad)
    y, code = _group_sort(
        x, steps, spec.descending, mask, spec.num_groups, spec.by_reference, spec.heads, with_code
    )
    return y, _index(code, steps, spec.num_groups, x.shape[1]) if with_index else None


def _index(code: Tensor, steps: Tensor | None, num_groups: int, length: int) -> Tensor:
    """(B, N, C) int64: the token that each position takes."""
    group_size = length // num_groups
    starts = torch.arange(0, length, group_size, device=code.device).unsqueeze(-1)
    if group_size == 2:
        first = starts + code
        index = torch.stack((first, 2 * starts + 1 - first), dim=2).flatten(1, 2)
    else:
        groups = torch.unflatten(code, 1, (num_groups, -1))
        index = (starts.unsqueeze(-1) + groups).flatten(1, 2)
    return index if steps is None else (index - steps) % length


def _room_for_code(x: Tensor, num_groups: int, with_code: bool) -> Tensor:
    """Room for the code of an order."""
    batch, length, channels = x.shape
    group_size = length // num_groups
    if not with_code:
        return x.new_empty(0, dtype=torch.uint8)
    if group_size == 2:
        return x.new_empty((batch, num_groups, channels), dtype=torch.uint8)
    dtype = torch.uint8 if group_size <= 256 else torch.int16
    return x.new_empty((batch, length, channels), dtype=dtype)


@operator(
    "rifflemix::triton_group_sort",
    schema="(Tensor x, Tensor? steps, Tensor? descending, Tensor? mask, SymInt num_groups, "
    "bool reference, SymInt heads, bool with_code) -> (Tensor, Tensor)",
)
def _group_sort(
    x: Tensor,
    steps: Tensor | None,
    descending: Tensor | None,
    mask: Tensor | None,
    num_groups: int,
    reference: bool,
    heads: int,
    with_code: bool,
) -> tuple[Tensor, Tensor]:
    leaders = heads if reference else 0
    check_sort(x, BITS, num_groups, leaders, descending, mask, steps)
    check_limits(x, x.shape[1] // num_groups)
    steps = None if steps is None else steps.contiguous()
    batch, length, channels = x.shape
    y = torch.empty((batch, length, channels), dtype=x.dtype, device=x.device)
    code = _room_for_code(x, num_groups, with_code)
    x = _whole_rows(x)
    saved: Tensor | None = code if with_code else None
    positions: Tensor | None = None
    if length == 2 * num_groups:
        _sort_pairs(x, y, saved, steps, descending, mask, channels // heads if reference else 0)
    elif reference:
        width = channels // heads
        leader_steps = None if steps is None else steps[::width].contiguous()
        leader = x[:, :, ::width]
        positions = torch.empty((batch, length, heads), dtype=torch.int16, device=x.device)
        _sort_windows(leader, None, positions, None, leader_steps, None, mask, num_groups)
        _sort_windows(x, y, saved, positions, steps, None, mask, num_groups)
    else:
        if mask is not None:
            positions = _valid_positions_first(mask, num_groups)
        _sort_windows(x, y, saved, positions, steps, descending, mask, num_groups)
    return y, code


@_group_sort.register_fake
@on_one_device
def _(
    x: Tensor,
    steps: Tensor | None,
    descending: Tensor | None,
    mask: Tensor | None,
    num_groups: int,
    reference: bool,
    heads: int,
    with_code: bool,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _room_for_code(x, num_groups, with_code)


def _keep_order(ctx: Any, inputs: Arguments, output: tuple[Tensor, Tensor]) -> None:
    _, steps, _, mask, num_groups, *_ = inputs
    ctx.save_for_backward(output[1], steps, mask)
    ctx.num_groups = num_groups


def _group_sort_backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    code, steps, mask = ctx.saved_tensors
    back = _group_unsort(grad, code, steps, mask, ctx.num_groups)
    return back, None, None, None, None, None, None, None


_group_sort.register_autograd(_group_sort_backward, setup_context=_keep_order)


@operator(
    "rifflemix::triton_group_unsort",
    schema="(Tensor grad, Tensor code, Tensor? steps, Tensor? mask, SymInt num_groups) -> Tensor",
)
def _group_unsort(
    grad: Tensor, code: Tensor, steps: Tensor | None, mask: Tensor | None, num_groups: int
) -> Tensor:
    check_sort(grad, BITS, num_groups, 0, None, mask, steps)
    room = _room_for_code(grad, num_groups, True)
    check_operand("code", code, room.shape, room.dtype, grad.device)
    check_limits(grad, grad.shape[1] // num_groups)
    steps = None if steps is None else steps.contiguous()
    code = code.contiguous()
    length = grad.shape[1]
    out = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    grad = _whole_rows(grad)
    if length == 2 * num_groups:
        _unsort_pairs(grad, code, out, steps, mask)
    elif length <= _MAX_UNSORTED * num_groups:
        _unsort_windows(grad, code, out, steps, mask, num_groups)
    else:
        _scatter(grad, code, out, steps, mask, num_groups)
    return out


@_group_unsort.register_fake
@on_one_device
def _(
    grad: Tensor, code: Tensor, steps: Tensor | None, mask: Tensor | None, num_groups: int
) -> Tensor:
    return grad.new_empty(grad.shape)


def _keep_code(ctx: Any, inputs: Arguments, output: Tensor) -> None:
    _, code, steps, mask, ctx.num_groups = inputs
    ctx.save_for_backward(code, steps, mask)


def _group_unsort_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    code, steps, mask = ctx.saved_tensors
    index = _index(code, steps, ctx.num_groups, grad.shape[1])
    return eager.take(grad, index, mask), None, None, None, None


_group_unsort.register_autograd(_group_unsort_backward, setup_context=_keep_code)


@operator("rifflemix::triton_shift", schema="(Tensor x, Tensor steps) -> Tensor")
def _shift(x: Tensor, steps: Tensor) -> Tensor:
    check_tokens("x", x, BITS, None, steps)
    check_limits(x, 1)
    steps = steps.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = _whole_rows(x)
    tile = shift_tile(x)
    grid, sizes = _rows(x, 1, tile)
    launch(kernels.shift, grid, x, _bits(x), _bits(y), steps, *x.stride(), *sizes, **tile)
    return y


@_shift.register_fake
@on_one_device
def _(x: Tensor, steps: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _keep_steps(ctx: Any, inputs: Arguments, output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _shift_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (steps,) = ctx.saved_tensors
    return _shift(grad, -steps), None


_shift.register_autograd(_shift_backward, setup_context=_keep_steps)


def shift_tile(x: Tensor, row_size: int = 1) -> dict[str, int]:
    """The tile of a kernel that shifts channels, in rows of `row_size` tokens.

    Memory comes in sectors of 32 bytes, and a shift takes each channel of a sector from another
    token: a program has the channels of two sectors and many tokens, so that most of what one of
    them brings to the cache, the others find there.
    """
    channels = 64 // x.element_size()
    return {
        "ROWS": 64 // row_size,
        "CHANNELS": min(channels, triton.next_power_of_2(x.shape[2])),
        "num_warps": 1,
    }


def window_tile(slots: int, own: int, channels: int) -> dict[str, int]:
    """How `sort_windows` cuts (tokens, channels) for windows of `slots` positions.

    A lane holds two channels, side by side. Of a window it has `own` slots, the rest is in other
    lanes of its warp. Only the longest windows, which one warp has no registers for, are spread
    over several, which exchange values through shared memory.
    """
    lanes = max(1, min(32, slots // own))
    shares = max(1, slots // (own * lanes))
    # The compiler puts lanes side by side as long as there are columns: more warps, other lanes.
    num_warps = shares if lanes > 1 else 4
    columns = min(2, channels) * 32 // lanes * num_warps // shares
    tile_channels = min(columns, triton.next_power_of_2(channels))
    return {
        "SLOTS": slots,
        "CHANNELS": tile_channels,
        "WINDOWS": columns // tile_channels,
        "LANES": lanes,
        "WARPS": shares,
        "num_warps": num_warps,
    }


def window_tile_of(group_size: int, half: int, channels: int) -> dict[str, int]:
    """The tile of windows of this size and of values of `half` bits."""
    slots = max(2, triton.next_power_of_2(group_size))
    own = 16 if slots <= 64 else 32 if slots <= 1024 else 64
    tile = window_tile(slots, own * 16 // half, channels)
    return {**tile, "maxnreg": {16: 128, 32: 168, 64: 255}[own]}


def _sort_windows(
    x: Tensor,
    y: Tensor | None,
    code: Tensor | None,
    positions: Tensor | None,
    steps: Tensor | None,
    descending: Tensor | None,
    mask: Tensor | None,
    num_groups: int,
) -> None:
    batch, length, channels = x.shape
    leaders = 1 if positions is None else positions.shape[2]
    half, group_size, num_windows = BITS[x.dtype], length // num_groups, batch * num_groups
    tile = window_tile_of(group_size, half, channels)
    out_strides = (length * channels, channels, 1)
    only: Tensor | None = None
    # Padding has positions: it stays where it is.
    values_alone = code is None and positions is None
    if y is not None and values_alone and _goes_by_pairs(x, steps, num_groups):
        only = _sort_values(x, y, descending, num_groups)
    launch(
        kernels.sort_windows,
        _num_programs(num_windows, channels, tile["WINDOWS"], tile["CHANNELS"]),
        x,
        _bits(x), _bits(y), code, positions, steps, _bytes(descending), _bytes(mask), only,
        *x.stride(), *out_strides,
        length, channels, group_size, num_windows, channels // leaders, leaders,
        INFINITY_BITS[x.dtype],
        HALF=half, WHOLE=num_groups == 1, **tile,
    )  # fmt: skip


def _goes_by_pairs(x: Tensor, steps: Tensor | None, num_groups: int) -> bool:
    """Whether `sort_values` can read these values, of whose order nothing else is wanted."""
    return (
        BITS[x.dtype] == 16
        and x.shape[2] % 2 == x.stride(0) % 2 == x.stride(1) % 2 == 0
        and x.data_ptr() % 4 == 0
        and (steps is None or num_groups == 1)  # which moves tokens within the window
        and _compares_halves(x.device)
    )


@functools.cache
def _compares_halves(device: torch.device) -> bool:
    """Whether an instruction there compares the halves of two integers, which came with Hopper."""
    return INTERPRETED or torch.cuda.get_device_capability(device) >= (9, 0)


def _sort_values(x: Tensor, y: Tensor, descending: Tensor | None, num_groups: int) -> Tensor:
    """Sort by pairs of channels; (windows, C / 2) bytes, of those that it had to leave."""
    batch, length, channels = x.shape
    num_windows, pairs = batch * num_groups, channels // 2
    left = torch.empty((num_windows, pairs), dtype=torch.uint8, device=x.device)
    tile = window_tile_of(length // num_groups, 16, pairs)
    launch(
        value_kernels.sort_values,
        _num_programs(num_windows, pairs, tile["WINDOWS"], tile["CHANNELS"]),
        x,
        x.view(torch.int32), y.view(torch.int32), _bytes(descending), left,
        x.stride(0) // 2, x.stride(1) // 2, length * pairs, pairs,
        length, pairs, length // num_groups, num_windows, INFINITY_BITS[x.dtype],
        ORDER="halves, interpreted" if INTERPRETED else "halves", **tile,
    )  # fmt: skip
    return left


def _unsort_windows(
    grad: Tensor,
    code: Tensor,
    out: Tensor,
    steps: Tensor | None,
    mask: Tensor | None,
    num_groups: int,
) -> None:
    batch, length, channels = grad.shape
    half, group_size, num_windows = BITS[grad.dtype], length // num_groups, batch * num_groups
    tile = window_tile_of(group_size, half, channels)
    launch(
        kernels.unsort_windows,
        _num_programs(num_windows, channels, tile["WINDOWS"], tile["CHANNELS"]),
        grad,
        _bits(grad), code, _bits(out), steps, _bytes(mask), *grad.stride(), *out.stride(),
        length, channels, group_size, num_windows,
        HALF=half, **tile,
    )  # fmt: skip


def _scatter(
    grad: Tensor,
    code: Tensor,
    out: Tensor,
    steps: Tensor | None,
    mask: Tensor | None,
    num_groups: int,
) -> None:
    grid, (length, channels, num_rows) = _rows(grad, 1, _ROW_TILE)
    launch(
        kernels.scatter, grid, grad,
        _bits(grad), code, _bits(out), steps, _bytes(mask), *grad.stride(),
        length, channels, length // num_groups, num_rows, **_ROW_TILE,
    )  # fmt: skip


def _sort_pairs(
    x: Tensor,
    y: Tensor,
    swaps: Tensor | None,
    steps: Tensor | None,
    descending: Tensor | None,
    mask: Tensor | None,
    leader_width: int,
) -> None:
    """`leader_width` is the number of channels that follow one, or 0: each its own order."""
    tile = _ROW_TILE if steps is None else shift_tile(x, 2)
    grid, sizes = _rows(x, 2, tile)
    launch(
        kernels.sort_pairs, grid, x,
        _bits(x), _bits(y), swaps, steps, _bytes(descending), _bytes(mask), *x.stride(),
        *sizes, max(1, leader_width), INFINITY_BITS[x.dtype],
        HALF=BITS[x.dtype], REFERENCE=leader_width > 0,
        ONE_LEADER=leader_width > 0 and leader_width % tile["CHANNELS"] == 0, **tile,
    )  # fmt: skip


def _unsort_pairs(
    grad: Tensor, swaps: Tensor, out: Tensor, steps: Tensor | None, mask: Tensor | None
) -> None:
    if steps is None:
        grid, sizes = _rows(grad, 2, _ROW_TILE)
        launch(
            kernels.unsort_pairs, grid, grad,
            _bits(grad), swaps, _bits(out), _bytes(mask), *grad.stride(), *sizes, **_ROW_TILE,
        )  # fmt: skip
        return
    tile = shift_tile(grad)
    grid, sizes = _rows(grad, 1, tile)
    launch(
        kernels.unshift_pairs, grid, grad,
        _bits(grad), swaps, _bits(out), steps, _bytes(mask), *grad.stride(), *sizes, **tile,
    )  # fmt: skip


def _valid_positions_first(mask: Tensor, num_groups: int) -> Tensor:
    """(B, N, 1) int16: in each group, the valid positions in order, then the padded ones."""
    groups = torch.unflatten(mask.to(torch.uint8), 1, (num_groups, -1))
    order = groups.sort(dim=2, stable=True).indices
    return order.to(torch.int16).flatten(1).unsqueeze(-1).contiguous()


def _whole_rows(x: Tensor) -> Tensor:
    """Tokens whose channels lie side by side, with offsets of 32 bits within a sample."""
    if x.stride(2) == 1 and 0 <= x.stride(1) * x.shape[1] <= MAX_OFFSET:
        return x
    return x.contiguous()


def _rows(x: Tensor, row_size: int, tile: dict[str, int]) -> tuple[int, tuple[int, int, int]]:
    """Number of programs, and (N, C, rows) for rows of `row_size` tokens."""
    batch, length, channels = x.shape
    num_rows = batch * (length // row_size)
    programs = _num_programs(num_rows, channels, tile["ROWS"], tile["CHANNELS"])
    return programs, (length, channels, num_rows)


def _num_programs(rows: int, columns: int, tile_rows: int, tile_columns: int) -> int:
    return -(-rows // tile_rows) * -(-columns // tile_columns)


def _bits(x: Tensor | None) -> Tensor | None:
    """The same memory as integers: kernels compare bits."""
    if x is None:
        return None
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def _bytes(flags: Tensor | None) -> Tensor | None:
    return None if flags is None else flags.contiguous().view(torch.uint8)
