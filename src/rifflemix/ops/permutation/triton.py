"""The permutation family on a GPU. Results are bit-identical to `eager`, except the bits in NaN.

The forward pass saves the order for the backward pass as a code of one or two bytes per element.
For pairs, the code marks exchanged pairs. Otherwise it is the source position in the group.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.define import define
from rifflemix.ops.permutation import eager
from rifflemix.ops.permutation import triton_kernels as kernels
from rifflemix.ops.permutation.arguments import Permuted, SortSpec, check_sort
from rifflemix.ops.permutation.triton_limits import (
    BITS,
    INFINITY_BITS,
    MAX_OFFSET,
    check_limits,
)
from rifflemix.ops.permutation.triton_windows import (
    bits_of,
    bytes_of,
    num_programs,
    sort_windows,
    unsort_windows,
)
from rifflemix.ops.triton_support import launch

_ROW_TILE = {"ROWS": 8, "CHANNELS": 128, "num_warps": 4}
# Longest group for which a backward pass that sorts is faster than one that writes single values.
_MAX_UNSORTED = 256


def circular_shift(x: Tensor, steps: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Roll channel c by steps[c]. `mask` must be None."""
    y: Tensor = _shift(x, steps)
    return y, eager.shift_index(x, steps, mask) if with_index else None


def permute(
    x: Tensor, steps: Tensor | None, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    """Shift and sort in one kernel. With padding, torch shifts before the kernel sorts."""
    if steps is not None and mask is not None:
        shift = eager.shift_index(x, steps, mask)
        y, index = permute(eager.take(x, shift, mask), None, spec, mask, with_index)
        return y, None if index is None else shift.gather(1, index)
    with_code = with_index or (torch.is_grad_enabled() and x.requires_grad)
    y, code = _group_sort(
        x, steps, spec.descending, mask, spec.num_groups, spec.by_reference, spec.heads, with_code
    )
    return y, _index(code, steps, spec.num_groups, x.shape[1]) if with_index else None


def _index(code: Tensor, steps: Tensor | None, num_groups: int, length: int) -> Tensor:
    """Decode the index (B, N, C) int64 of the source token of each position."""
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
    """Allocate the tensor that stores the order of the tokens as a code."""
    batch, length, channels = x.shape
    group_size = length // num_groups
    if not with_code:
        return x.new_empty(0, dtype=torch.uint8)
    if group_size == 2:
        return x.new_empty((batch, num_groups, channels), dtype=torch.uint8)
    dtype = torch.uint8 if group_size <= 256 else torch.int16
    return x.new_empty((batch, length, channels), dtype=dtype)


def _check_unsort(grad: Tensor, code: Tensor, *settings: Any) -> dict[str, int]:
    num_groups = settings[-1]
    check_sort(grad, num_groups)
    room = _room_for_code(grad, num_groups, True)
    if code.dtype != room.dtype:
        raise bad_argument("code", f"dtype {room.dtype}", code.dtype)
    return {"CODES": room.shape[1]}


def _unsort_gradient(
    code: Tensor, steps: Tensor | None, mask: Tensor | None, num_groups: int, grad: Tensor
) -> Tensor:
    return eager.take(grad, _index(code, steps, num_groups, grad.shape[1]), mask)


@define(
    "triton_group_unsort",
    schema="(Tensor grad, Tensor code, Tensor? steps, Tensor? mask, SymInt num_groups) -> Tensor",
    shapes="grad: B N C, code: B CODES C uint8|int16, steps: C int64, mask: B N bool",
    dtypes=BITS,
    check=_check_unsort,
    like="grad",
    saves="code steps mask num_groups",
    backward=_unsort_gradient,
)
def _group_unsort(
    grad: Tensor, code: Tensor, steps: Tensor | None, mask: Tensor | None, num_groups: int
) -> Tensor:
    check_limits(grad, grad.shape[1] // num_groups)
    steps = None if steps is None else steps.contiguous()
    code = code.contiguous()
    length = grad.shape[1]
    out = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    grad = _whole_rows(grad)
    if length == 2 * num_groups:
        _unsort_pairs(grad, code, out, steps, mask)
    elif length <= _MAX_UNSORTED * num_groups:
        unsort_windows(grad, code, out, steps, mask, num_groups)
    else:
        _scatter(grad, code, out, steps, mask, num_groups)
    return out


def _check_group_sort(x: Tensor, *settings: Any) -> None:
    *_, num_groups, reference, heads, _ = settings
    check_sort(x, num_groups, heads if reference else 0)


def _empty_groups(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    *_, num_groups, _, _, with_code = settings
    return x.new_empty(x.shape), _room_for_code(x, num_groups, with_code)


@define(
    "triton_group_sort",
    schema="(Tensor x, Tensor? steps, Tensor? descending, Tensor? mask, SymInt num_groups, "
    "bool reference, SymInt heads, bool with_code) -> (Tensor, Tensor)",
    shapes="x: B N C, steps: C int64, descending: C bool, mask: B N bool",
    dtypes=BITS,
    check=_check_group_sort,
    like=_empty_groups,
    outputs="y | code",
    saves="code steps mask num_groups",
    backward=lambda code, steps, mask, groups, grad: _group_unsort(grad, code, steps, mask, groups),
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
        sort_windows(leader, None, positions, None, leader_steps, None, mask, num_groups)
        sort_windows(x, y, saved, positions, steps, None, mask, num_groups)
    else:
        if mask is not None:
            positions = _valid_positions_first(mask, num_groups)
        sort_windows(x, y, saved, positions, steps, descending, mask, num_groups)
    return y, code


def _shift_gradient(steps: Tensor, grad: Tensor) -> Any:
    return _shift(grad, -steps)


@define(
    "triton_shift",
    schema="(Tensor x, Tensor steps) -> Tensor",
    shapes="x: B N C, steps: C int64",
    dtypes=BITS,
    like="x",
    saves="steps",
    backward=_shift_gradient,
)
def _shift(x: Tensor, steps: Tensor) -> Tensor:
    check_limits(x, 1)
    steps = steps.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = _whole_rows(x)
    tile = shift_tile(x)
    grid, sizes = _rows(x, 1, tile)
    launch(kernels.shift, grid, x, bits_of(x), bits_of(y), steps, *x.stride(), *sizes, **tile)
    return y


def shift_tile(x: Tensor, row_size: int = 1) -> dict[str, int]:
    """Choose the tile of a kernel that shifts rows of tokens.

    Memory transfers are sectors of 32 bytes, and a shift reads each channel of a sector from a
    different token. A program handles the channels of two sectors and many tokens. So most sectors
    that one token loads are reused from the cache by other tokens.
    """
    channels = 64 // x.element_size()
    return {
        "ROWS": 64 // row_size,
        "CHANNELS": min(channels, triton.next_power_of_2(x.shape[2])),
        "num_warps": 1,
    }


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
        bits_of(grad), code, bits_of(out), steps, bytes_of(mask), *grad.stride(),
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
    """Sort pairs; every `leader_width` channels share one reference channel.

    0 means that each channel has its own order.
    """
    tile = _ROW_TILE if steps is None else shift_tile(x, 2)
    grid, sizes = _rows(x, 2, tile)
    launch(
        kernels.sort_pairs, grid, x,
        bits_of(x), bits_of(y), swaps, steps, bytes_of(descending), bytes_of(mask), *x.stride(),
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
            bits_of(grad), swaps, bits_of(out), bytes_of(mask), *grad.stride(), *sizes, **_ROW_TILE,
        )  # fmt: skip
        return
    tile = shift_tile(grad)
    grid, sizes = _rows(grad, 1, tile)
    launch(
        kernels.unshift_pairs, grid, grad,
        bits_of(grad), swaps, bits_of(out), steps, bytes_of(mask), *grad.stride(), *sizes, **tile,
    )  # fmt: skip


def _valid_positions_first(mask: Tensor, num_groups: int) -> Tensor:
    """List the positions of each group, valid before padded, as (B, N, 1) int16."""
    groups = torch.unflatten(mask.to(torch.uint8), 1, (num_groups, -1))
    order = groups.sort(dim=2, stable=True).indices
    return order.to(torch.int16).flatten(1).unsqueeze(-1).contiguous()


def _whole_rows(x: Tensor) -> Tensor:
    """Return `x` with adjacent channels and 32-bit offsets within a sample."""
    if x.stride(2) == 1 and 0 <= x.stride(1) * x.shape[1] <= MAX_OFFSET:
        return x
    return x.contiguous()


def _rows(x: Tensor, row_size: int, tile: dict[str, int]) -> tuple[int, tuple[int, int, int]]:
    """Divide (B, N, C) tokens into rows of `row_size` tokens, one program per row.

    Returns:
        The number of programs, and the sizes N, C and rows per sample for the kernels.
    """
    batch, length, channels = x.shape
    num_rows = batch * (length // row_size)
    programs = num_programs(num_rows, channels, tile["ROWS"], tile["CHANNELS"])
    return programs, (length, channels, num_rows)
