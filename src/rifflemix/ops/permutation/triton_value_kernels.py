"""GPU kernel that sorts 16-bit values without positions, two channels at a time.

Two values of adjacent channels are packed into one integer, and one instruction compares both
halves. So a tile has twice the channels of `triton_kernels.sort_windows`. There are no bits
for positions, so the kernel is for inference, when no order is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rifflemix.ops.permutation.triton_kernels import columns_of, rank_of_slot, sort_slots


@triton.jit
def _spread(x):
    """Spread the top bit of each half over the half."""
    ones = x >> 15 & 0x00010001
    return (ones << 16) - ones


@triton.jit
def _pair_key(bits, magnitude, down, infinity):
    """Map two values to two unsigned 16-bit keys.

    NaN is 0xFFFE in both directions.
    """
    key = bits ^ (_spread(bits) | -0x7FFF8000)  # the top bit of either half
    if down is not None:
        key = key ^ down
    nan = _spread(magnitude + (0x7FFF - infinity) * 0x00010001)
    return key & ~nan | nan & -0x00010002


@triton.jit
def _pair_bits(key, down):
    """Invert `_pair_key`; 0xFFFF gives 0.0."""
    value = key
    if down is not None:
        value = value ^ down
    value = value ^ (~_spread(value) | -0x7FFF8000)
    special = _spread((key >> 1 & 0x7FFF7FFF) + 0x00010001)  # 0xFFFE or 0xFFFF
    return value & ~special | special & ~_spread(key << 15) & 0x7FFE7FFE


@triton.jit
def _pair_down(descending, channel, there):
    """Return all ones in the halves of descending channels."""
    first = tl.load(descending + 2 * channel, mask=there, other=0).to(tl.int32)
    second = tl.load(descending + 2 * channel + 1, mask=there, other=0).to(tl.int32)
    return tl.where(first != 0, 0xFFFF, 0) | tl.where(second != 0, -0x00010000, 0)


@triton.jit
def sort_values(
    x, y, descending, left,
    x_batch, x_token, x_channel, out_batch, out_token, out_channel,
    length, channels, group_size, num_windows, infinity,
    SLOTS: tl.constexpr, CHANNELS: tl.constexpr, WINDOWS: tl.constexpr,
    LANES: tl.constexpr, WARPS: tl.constexpr, RUN: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """Sort the values of every window, without source positions.

    x, y, `channels` and all strides count pairs of channels: two 16-bit values are one integer.
    Without positions, -0.0 always comes before 0.0, although a stable sort must keep their order.
    So the kernel marks pairs (windows, channels) with a -0.0 in `left`, for `sort_windows`.
    """
    sample, start, channel, there = columns_of(
        length, channels, group_size, num_windows, CHANNELS, WINDOWS
    )
    slot = tl.arange(0, SLOTS)[:, None]
    inside = there & (slot < group_size)
    token = slot + start
    down = None
    if descending is not None:
        down = _pair_down(descending, channel, there)
    offset = token * x_token + channel * x_channel
    bits = tl.load(x + sample * x_batch + offset, mask=inside, other=0)
    magnitude = bits & 0x7FFF7FFF
    key = tl.where(inside, _pair_key(bits, magnitude, down, infinity), -1)
    negative_zero = _spread(bits) & ~_spread(magnitude + 0x7FFF7FFF)
    found = tl.max((inside & (negative_zero != 0)).to(tl.int32), 0, keep_dims=True)
    window = sample * (length // group_size) + start // group_size
    tl.store(left + window * channels + channel, found.to(tl.int8), mask=there)
    key = sort_slots(key, LANES, WARPS, RUN, ORDER)
    goal = rank_of_slot(slot, SLOTS, LANES, WARPS, RUN)
    offset = (goal + start) * out_token + channel * out_channel
    tl.store(
        y + sample * out_batch + offset, _pair_bits(key, down), mask=there & (goal < group_size)
    )
