"""Launch of the kernels that sort windows, and their division into programs.

A program with a long window has registers for only one or two channels, less than a sector of
memory. So long windows are sorted in a transposed copy with adjacent tokens. Windows that write
tokens out of order do not use a copy, because their writes are scattered in both layouts.
"""

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor

from rifflemix.ops.permutation import triton_window_kernels as kernels
from rifflemix.ops.permutation.triton_limits import BITS, INFINITY_BITS, MAX_OFFSET
from rifflemix.ops.triton_support import INTERPRETED, launch

# Windows with more tokens use a transposed copy. For shorter windows the copies cost too much.
_MOST_ACROSS = 512
_TURN_TILE = {"TOKENS": 64, "CHANNELS": 64, "num_warps": 4}
# Rows of a transposed copy start at multiples of this, so that Triton detects their alignment.
_ALIGNED = 16


def window_tile(slots: int, own: int, side: int, channels: int) -> dict[str, int]:
    """Choose the tile of `sort_windows` for windows of `slots` positions.

    A lane has `side` adjacent channels and `own` slots of a window. The other slots are in other
    lanes of its warp. Only the longest windows need the registers of several warps, which exchange
    values through shared memory.
    """
    lanes = max(1, min(32, slots // own))
    shares = max(1, slots // (own * lanes))
    # The compiler assigns lanes along the columns first, so the number of warps affects the lanes.
    num_warps = shares if lanes > 1 else 4
    columns = min(side, channels) * 32 // lanes * num_warps // shares
    tile_channels = min(columns, triton.next_power_of_2(channels))
    return {
        "SLOTS": slots,
        "CHANNELS": tile_channels,
        "WINDOWS": columns // tile_channels,
        "LANES": lanes,
        "WARPS": shares,
        "num_warps": num_warps,
    }


def window_tile_of(
    group_size: int, half: int, channels: int, turned_bytes: int = 0
) -> dict[str, int]:
    """Choose the tile for a window size and values of `half` bits.

    `turned_bytes` is the size of an element of a transposed copy, or 0 without a copy. In a copy, a
    lane reads 16 bytes of one channel.
    """
    slots = max(2, triton.next_power_of_2(group_size))
    own = 16 if slots <= 64 else 32 if slots <= 1024 else 64
    side = 1 if turned_bytes else 2
    tile = window_tile(slots, own * 16 // half, side, channels)
    if turned_bytes:
        registers = 168 if half == 32 and own == 64 else 128
    else:
        registers = {16: 128, 32: 168, 64: 255}[own]
    return {**tile, "RUN": 16 // turned_bytes if turned_bytes else 1, "maxnreg": registers}


def _is_turned(group_size: int, x: Tensor) -> bool:
    """Return whether windows of this size are sorted in a transposed copy."""
    _, length, channels = x.shape
    return group_size > _MOST_ACROSS and channels * _pitch(length) <= MAX_OFFSET


def _pitch(length: int) -> int:
    """Return the channel stride of a transposed copy, in elements."""
    return -(-length // _ALIGNED) * _ALIGNED


def _turned_like(x: Tensor) -> Tensor:
    """Allocate (B, N, C) with adjacent tokens."""
    batch, length, channels = x.shape
    return x.new_empty((batch, channels, _pitch(length)))[:, :, :length].transpose(1, 2)


def _turn(x: Tensor, y: Tensor) -> Tensor:
    """Copy x to y with a transposed layout; return y."""
    batch, length, channels = x.shape
    tiles = num_programs(length, channels, _TURN_TILE["TOKENS"], _TURN_TILE["CHANNELS"])
    launch(
        kernels.turn, batch * tiles, x,
        x, y, *x.stride(), *y.stride(), length, channels, **_TURN_TILE,
    )  # fmt: skip
    return y


def sort_windows(
    x: Tensor,
    y: Tensor | None,
    code: Tensor | None,
    positions: Tensor | None,
    steps: Tensor | None,
    descending: Tensor | None,
    mask: Tensor | None,
    num_groups: int,
) -> None:
    """Shift and sort the windows of x (B, N, C) into y and `code`.

    y or `code` may be None. If `positions` is given, rank r goes to position `positions[r]` of its
    window.
    """
    batch, length, channels = x.shape
    leaders = 1 if positions is None else positions.shape[2]
    half, group_size, num_windows = BITS[x.dtype], length // num_groups, batch * num_groups
    only: Tensor | None = None
    # Without `positions`, writes are in order. Padding requires `positions` and stays in place.
    in_order = y is not None and positions is None
    if y is not None and in_order and code is None and _goes_by_pairs(x, steps, num_groups):
        only = _sort_values(x, y, descending, num_groups)
    turned = in_order and only is None and _is_turned(group_size, x)
    tile = window_tile_of(group_size, half, channels, turned * half // 8)
    out = [y, code]
    if turned:
        x = _turn(x, _turned_like(x))
        out = [None if tensor is None else _turned_like(tensor) for tensor in out]
    out_strides = next(tensor.stride() for tensor in out if tensor is not None)
    launch(
        kernels.sort_windows,
        num_programs(num_windows, channels, tile["WINDOWS"], tile["CHANNELS"]),
        x,
        bits_of(x), bits_of(out[0]), out[1], positions, steps,
        bytes_of(descending), bytes_of(mask), only,
        *x.stride(), *out_strides,
        length, channels, group_size, num_windows, channels // leaders, leaders,
        INFINITY_BITS[x.dtype],
        HALF=half, WHOLE=num_groups == 1, **tile,
    )  # fmt: skip
    if turned:
        for found, tensor in zip(out, (y, code), strict=True):
            if found is not None and tensor is not None:
                _turn(found, tensor)


def _goes_by_pairs(x: Tensor, steps: Tensor | None, num_groups: int) -> bool:
    """Return whether `sort_values` supports x; it does not return the order."""
    return (
        BITS[x.dtype] == 16
        and x.shape[2] % 2 == x.stride(0) % 2 == x.stride(1) % 2 == 0
        and x.data_ptr() % 4 == 0
        and (steps is None or num_groups == 1)  # no effect within a full window
        and _compares_halves(x.device)
    )


@functools.cache
def _compares_halves(device: torch.device) -> bool:
    """Return whether the GPU compares 16-bit halves in one instruction (Hopper or later)."""
    return INTERPRETED or torch.cuda.get_device_capability(device) >= (9, 0)


def _sort_values(x: Tensor, y: Tensor, descending: Tensor | None, num_groups: int) -> Tensor:
    """Sort pairs of channels; return (windows, C / 2) flags of pairs still to sort."""
    dtype, x, y = x.dtype, x.view(torch.int32), y.view(torch.int32)
    batch, length, pairs = x.shape
    group_size, num_windows = length // num_groups, batch * num_groups
    left = torch.empty((num_windows, pairs), dtype=torch.uint8, device=x.device)
    turned = _is_turned(group_size, x)
    tile = window_tile_of(group_size, 16, pairs, turned * 4)
    out = y
    if turned:
        x, out = _turn(x, _turned_like(x)), _turned_like(y)
    launch(
        kernels.sort_values,
        num_programs(num_windows, pairs, tile["WINDOWS"], tile["CHANNELS"]),
        x,
        x, out, bytes_of(descending), left, *x.stride(), *out.stride(),
        length, pairs, group_size, num_windows, INFINITY_BITS[dtype],
        ORDER="halves, interpreted" if INTERPRETED else "halves", **tile,
    )  # fmt: skip
    if turned:
        _turn(out, y)
    return left


def unsort_windows(
    grad: Tensor,
    code: Tensor,
    out: Tensor,
    steps: Tensor | None,
    mask: Tensor | None,
    num_groups: int,
) -> None:
    """Move the gradient of each position to its source token from `code`."""
    batch, length, channels = grad.shape
    half, group_size, num_windows = BITS[grad.dtype], length // num_groups, batch * num_groups
    tile = window_tile_of(group_size, half, channels)
    launch(
        kernels.unsort_windows,
        num_programs(num_windows, channels, tile["WINDOWS"], tile["CHANNELS"]),
        grad,
        bits_of(grad), code, bits_of(out), steps, bytes_of(mask), *grad.stride(), *out.stride(),
        length, channels, group_size, num_windows,
        HALF=half, **tile,
    )  # fmt: skip


def num_programs(rows: int, columns: int, tile_rows: int, tile_columns: int) -> int:
    return -(-rows // tile_rows) * -(-columns // tile_columns)


def bits_of(x: Tensor | None) -> Tensor | None:
    """View a tensor as integers, because kernels compare bits."""
    if x is None:
        return None
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def bytes_of(flags: Tensor | None) -> Tensor | None:
    return None if flags is None else flags.contiguous().view(torch.uint8)
