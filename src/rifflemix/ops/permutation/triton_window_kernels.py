"""GPU kernels that sort windows of the permutation family.

A window is a group of tokens of one channel, padded to a power of two with the largest keys. A
program loads a tile of windows, with channels along its lanes, and keeps it in registers.

For a sort, the key of a value and its position are packed into one integer of twice the width.
Packed integers are distinct, so an unstable sort of them is a stable sort of the values. They also
contain the source positions. From the highest bit down: key | position | 1 bit that distinguishes
-0.0 from 0.0.

`sort_values` sorts 16-bit values without positions, two channels at a time. Two values of adjacent
channels are packed into one integer, and one instruction compares both halves. So a tile has twice
the channels of `sort_windows`. There are no bits for positions, so the kernel is for inference,
when no order is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rifflemix.ops.permutation.triton_kernels import (
    is_padded,
    load_step,
    sort_key,
    source_of,
    widen,
)


@triton.constexpr_function
def _log2(power):
    return int(power).bit_length() - 1


@triton.jit
def _bits_of(key, negative_zero, down, HALF: tl.constexpr):
    """Invert `sort_key`; the key of a padded position gives 0.0."""
    top: tl.constexpr = (1 << (HALF - 1)) - 1
    if down is not None:
        key = tl.where(down & (key < top - 1), ~key, key)
    bits = tl.where(key < 0, key ^ top, key) | (negative_zero << (HALF - 1))
    return tl.where(key == top, 0, bits)


@triton.jit
def _bit(cube, i: tl.constexpr):
    """Return bit i of the positions in a hypercube, for broadcasting."""
    rank: tl.constexpr = len(cube.shape)
    return tl.reshape(tl.arange(0, 2), [1] * (rank - i - 1) + [2] + [1] * i)


@triton.jit
def _smaller(a, b, ORDER: tl.constexpr):
    if ORDER == "halves":
        return tl.inline_asm_elementwise(
            "min.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    if ORDER == "halves, interpreted":
        low = tl.minimum(a & 0xFFFF, b & 0xFFFF)
        return low | tl.minimum(a >> 16 & 0xFFFF, b >> 16 & 0xFFFF) << 16
    return tl.minimum(a, b)


@triton.jit
def _larger(a, b, ORDER: tl.constexpr):
    if ORDER == "halves":
        return tl.inline_asm_elementwise(
            "max.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    if ORDER == "halves, interpreted":
        low = tl.maximum(a & 0xFFFF, b & 0xFFFF)
        return low | tl.maximum(a >> 16 & 0xFFFF, b >> 16 & 0xFFFF) << 16
    return tl.maximum(a, b)


@triton.jit
def _exchange(cube, bit: tl.constexpr, ORDER: tl.constexpr):
    """Order all pairs of elements that differ only in this position bit."""
    other = cube ^ tl.xor_sum(cube, len(cube.shape) - 1 - bit, keep_dims=True)
    second = _bit(cube, bit) == 1
    return tl.where(second, _larger(cube, other, ORDER), _smaller(cube, other, ORDER))


@triton.jit
def _merge(cube, stage: tl.constexpr, last: tl.constexpr, ORDER: tl.constexpr):
    """Merge sorted runs of 2^stage into runs of 2^(stage + 1).

    Odd runs are complemented.
    """
    if stage > 0:
        cube = cube ^ -_bit(cube, stage).to(cube.dtype)
    if not last:
        cube = cube ^ -_bit(cube, stage + 1).to(cube.dtype)
    for i in tl.static_range(stage + 1):
        cube = _exchange(cube, stage - i, ORDER)
    return cube


@triton.jit
def _bitonic_sort(tile, ORDER: tl.constexpr):
    """Sort the rows of a tile of distinct integers, ascending.

    `tl.sort` chooses a direction at each comparison, so each costs a comparison and a selection.
    Here the integers of descending runs are complemented once per stage, so each comparison is one
    minimum or maximum.
    """
    stages: tl.constexpr = _log2(tile.shape[1])
    cube = tl.reshape(tile, [2] * _log2(tile.numel))
    for stage in tl.static_range(stages):
        cube = _merge(cube, stage, stage == stages - 1, ORDER)
    return tl.reshape(cube, tile.shape)


@triton.jit
def sort_slots(
    packed, LANES: tl.constexpr, WARPS: tl.constexpr, RUN: tl.constexpr, ORDER: tl.constexpr
):  # fmt: skip
    """Sort a tile (slots, columns) along its slots; `rank_of_slot` gives the resulting order.

    A sorting network compares near slots far more often than distant slots. So the slots of one
    thread become the nearest, then the slots of one warp. A thread loads its slots in runs of RUN,
    and the lanes take turns. The sort renumbers the slots without moving data, because each key
    contains its position.

    ORDER: "whole" sorts integers, "halves" sorts the two unsigned 16-bit halves separately.
    """
    slots: tl.constexpr = packed.shape[0]
    columns: tl.constexpr = packed.shape[1]
    runs: tl.constexpr = slots // (LANES * WARPS * RUN)
    near = tl.reshape(tl.trans(packed), (columns, runs, WARPS, LANES, RUN))
    near = tl.reshape(tl.permute(near, (0, 2, 3, 1, 4)), (columns, slots))
    near = tl.reshape(_bitonic_sort(near, ORDER), (columns, WARPS, LANES, runs, RUN))
    return tl.trans(tl.reshape(tl.permute(near, (0, 3, 1, 2, 4)), (columns, slots)))


@triton.jit
def rank_of_slot(
    slot, SLOTS: tl.constexpr, LANES: tl.constexpr, WARPS: tl.constexpr, RUN: tl.constexpr
):
    shared: tl.constexpr = LANES * WARPS
    run = slot // RUN
    return run % shared * (SLOTS // shared) + run // shared * RUN + slot % RUN


@triton.jit
def columns_of(
    length, channels, group_size, num_windows, CHANNELS: tl.constexpr, WINDOWS: tl.constexpr
):
    """Return sample, first token, channel and existence of each tile column."""
    tiles = tl.cdiv(channels, CHANNELS)
    tile = tl.program_id(0)
    column = tl.arange(0, CHANNELS * WINDOWS)[None, :]
    # The hint of two adjacent channels makes the compiler give a lane two channels of many slots.
    channel = tile % tiles * CHANNELS + column % CHANNELS
    channel = tl.max_contiguous(channel, (1, 2 if CHANNELS > 1 else 1))
    window = tile // tiles * WINDOWS + column // CHANNELS
    num_groups = length // group_size
    there = (channel < channels) & (window < num_windows)
    return (window // num_groups).to(tl.int64), window % num_groups * group_size, channel, there


@triton.jit
def turn(
    x, y, x_batch, x_token, x_channel, y_batch, y_token, y_channel, length, channels,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Copy x to y and transpose the memory layout."""
    wide, high = tl.cdiv(channels, CHANNELS), tl.cdiv(length, TOKENS)
    tile = tl.program_id(0)
    sample = (tile // (wide * high)).to(tl.int64)
    token = tile // wide % high * TOKENS + tl.arange(0, TOKENS)[:, None]
    channel = tile % wide * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    there = (token < length) & (channel < channels)
    x += sample * x_batch + (token * x_token + channel * x_channel)
    y += sample * y_batch + (token * y_token + channel * y_channel)
    tl.store(y, tl.load(x, mask=there, other=0), mask=there)


@triton.jit
def sort_windows(
    x, y, code, positions, steps, descending, mask, only,
    x_batch, x_token, x_channel, out_batch, out_token, out_channel,
    length, channels, group_size, num_windows, leader_width, leaders, infinity,
    HALF: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr, WINDOWS: tl.constexpr,
    LANES: tl.constexpr, WARPS: tl.constexpr, RUN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Shift by `steps`, then sort every window.

    Rank r goes to position `positions[r]`.

    The kernel writes the source position of each token in its window to `code` (B, N, C). `only`
    (windows, C / 2) marks the pairs of channels to sort; programs without a marked pair do nothing.
    y, code, positions (B, N, leaders), steps, descending, mask and only may be None.
    """
    sample, start, channel, there = columns_of(
        length, channels, group_size, num_windows, CHANNELS, WINDOWS
    )
    if only is not None:
        window = (sample * length + start) // group_size
        marks = tl.load(only + window * (channels // 2) + channel // 2, mask=there, other=0)
        if tl.max(tl.max(marks, 1), 0) == 0:
            return
    slot = tl.arange(0, SLOTS)[:, None]
    inside = there & (slot < group_size)
    token = slot + start
    position = slot
    if steps is not None:
        step = load_step(steps, channel, channels, length)
        if WHOLE:
            # The window contains all tokens, so shift the positions instead of the reads.
            position = slot + step
            position = tl.where(position >= length, position - length, position)
        else:
            token = source_of(token, step, length)
    down = None
    if descending is not None:
        down = tl.load(descending + channel, mask=there, other=0) != 0
    offset = token * x_token + channel * x_channel
    bits = widen(tl.load(x + sample * x_batch + offset, mask=inside, other=0), HALF)
    key = sort_key(bits, down, infinity, HALF)
    outside = ~inside
    if mask is not None:
        outside = outside | is_padded(mask, sample, token, length, inside)
    key = tl.where(outside, (1 << (HALF - 1)) - 1, key)
    negative_zero = (bits == -(1 << (HALF - 1))).to(bits.dtype)
    packed = (key << HALF) | (position.to(bits.dtype) << 1) | negative_zero
    packed = sort_slots(packed, LANES, WARPS, RUN, "whole")
    goal = rank_of_slot(slot, SLOTS, LANES, WARPS, RUN)
    inside = there & (goal < group_size)
    if positions is not None:
        table = positions + (sample * length + start) * leaders + channel // leader_width
        goal = tl.load(table + goal * leaders, mask=inside, other=0).to(tl.int32)
    offset = (goal + start) * out_token + channel * out_channel
    if y is not None:
        bits = _bits_of(packed >> HALF, packed & 1, down, HALF)
        tl.store(y + sample * out_batch + offset, bits.to(y.dtype.element_ty), mask=inside)
    if code is not None:
        source = (packed & ((1 << HALF) - 1)) >> 1
        tl.store(code + sample * out_batch + offset, source.to(code.dtype.element_ty), mask=inside)


@triton.jit
def unsort_windows(
    grad, code, out, steps, mask,
    g_batch, g_token, g_channel, out_batch, out_token, out_channel,
    length, channels, group_size, num_windows,
    HALF: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr, WINDOWS: tl.constexpr,
    LANES: tl.constexpr, WARPS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Move each gradient to its source token by a sort.

    The sort key is `code`.

    For small windows this is faster than `scatter`, which writes single values.
    """
    sample, start, channel, there = columns_of(
        length, channels, group_size, num_windows, CHANNELS, WINDOWS
    )
    slot = tl.arange(0, SLOTS)[:, None]
    inside = there & (slot < group_size)
    token = slot + start
    offset = token * g_token + channel * g_channel
    bits = widen(tl.load(grad + sample * g_batch + offset, mask=inside, other=0), HALF)
    if mask is not None:
        bits = tl.where(is_padded(mask, sample, token, length, inside), 0, bits)
    offset = token * out_token + channel * out_channel
    source = widen(tl.load(code + sample * out_batch + offset, mask=inside, other=0), HALF)
    source = tl.where(inside, source, slot)
    packed = (source << HALF) | (bits & ((1 << HALF) - 1))
    packed = sort_slots(packed, LANES, WARPS, RUN, "whole")
    position = rank_of_slot(slot, SLOTS, LANES, WARPS, RUN)
    inside = there & (position < group_size)
    token = position + start
    if steps is not None:
        token = source_of(token, load_step(steps, channel, channels, length), length)
    offset = token * out_token + channel * out_channel
    tl.store(out + sample * out_batch + offset, packed.to(out.dtype.element_ty), mask=inside)


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
