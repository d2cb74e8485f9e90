"""GPU kernels of the permutation family.

The kernels read values as integers of 16 or 32 bits (`HALF`). For a sort, the key of a value and
its position are packed into one integer of twice the width. Packed integers are distinct, so an
unstable sort of them is a stable sort of the values. They also contain the source positions.
From the highest bit down: key | position | 1 bit that distinguishes -0.0 from 0.0.

A window is a group of tokens of one channel, padded to a power of two with the largest keys. A
program loads a tile of windows, with channels along its lanes, and keeps it in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def _log2(power):
    return int(power).bit_length() - 1


@triton.jit
def _sort_key(bits, down, infinity, HALF: tl.constexpr):
    """Map values to integers of the same order.

    -0.0 equals 0.0. NaN comes last in both directions.

    `down` marks the values to sort in descending order, or is None. The keys never use the largest
    integer, so that it can mark padding.
    """
    top: tl.constexpr = (1 << (HALF - 1)) - 1
    magnitude = bits & top
    key = tl.where(bits < 0, bits ^ top, bits)
    key = tl.where(magnitude == 0, 0, key)
    if down is not None:
        key = tl.where(down, ~key, key)
    return tl.where(magnitude > infinity, top - 1, key)


@triton.jit
def _bits_of(key, negative_zero, down, HALF: tl.constexpr):
    """Invert `_sort_key`; the key of a padded position gives 0.0."""
    top: tl.constexpr = (1 << (HALF - 1)) - 1
    if down is not None:
        key = tl.where(down & (key < top - 1), ~key, key)
    bits = tl.where(key < 0, key ^ top, key) | (negative_zero << (HALF - 1))
    return tl.where(key == top, 0, bits)


@triton.jit
def _widen(bits, HALF: tl.constexpr):
    return bits.to(tl.int32) if HALF == 16 else bits.to(tl.int64)


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
def _rows(length, channels, num_rows, row_size, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return sample, first token, channel and existence of each tile row."""
    tiles = tl.cdiv(channels, CHANNELS)
    tile = tl.program_id(0)
    row = tile // tiles * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tile % tiles * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    rows_each = length // row_size
    there = (row < num_rows) & (channel < channels)
    return (row // rows_each).to(tl.int64), row % rows_each * row_size, channel, there


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
def _load_step(steps, channel, channels, length):
    """Load the steps of channels and reduce them to 0..length - 1.

    Steps may have any size and sign. There is one step per channel, not per token.
    """
    step = tl.load(steps + channel, mask=channel < channels, other=0) % length
    return tl.where(step < 0, step + length, step).to(tl.int32)


@triton.jit
def _source(token, step, length):
    """Return the source token of a shift by 0 <= step < length."""
    return tl.where(token < step, token + length - step, token - step)


@triton.jit
def _is_padded(mask, sample, token, length, there):
    return tl.load(mask + sample * length + token, mask=there, other=0) != 0


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
        step = _load_step(steps, channel, channels, length)
        if WHOLE:
            # The window contains all tokens, so shift the positions instead of the reads.
            position = slot + step
            position = tl.where(position >= length, position - length, position)
        else:
            token = _source(token, step, length)
    down = None
    if descending is not None:
        down = tl.load(descending + channel, mask=there, other=0) != 0
    offset = token * x_token + channel * x_channel
    bits = _widen(tl.load(x + sample * x_batch + offset, mask=inside, other=0), HALF)
    key = _sort_key(bits, down, infinity, HALF)
    outside = ~inside
    if mask is not None:
        outside = outside | _is_padded(mask, sample, token, length, inside)
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
    bits = _widen(tl.load(grad + sample * g_batch + offset, mask=inside, other=0), HALF)
    if mask is not None:
        bits = tl.where(_is_padded(mask, sample, token, length, inside), 0, bits)
    offset = token * out_token + channel * out_channel
    source = _widen(tl.load(code + sample * out_batch + offset, mask=inside, other=0), HALF)
    source = tl.where(inside, source, slot)
    packed = (source << HALF) | (bits & ((1 << HALF) - 1))
    packed = sort_slots(packed, LANES, WARPS, RUN, "whole")
    position = rank_of_slot(slot, SLOTS, LANES, WARPS, RUN)
    inside = there & (position < group_size)
    token = position + start
    if steps is not None:
        token = _source(token, _load_step(steps, channel, channels, length), length)
    offset = token * out_token + channel * out_channel
    tl.store(out + sample * out_batch + offset, packed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def scatter(
    grad, code, out, steps, mask,
    g_batch, g_token, g_channel,
    length, channels, group_size, num_rows,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Move each gradient to its source token.

    `code` must be a permutation.

    Gradients that would leave their group are dropped.
    """
    sample, token, channel, there = _rows(length, channels, num_rows, 1, ROWS, CHANNELS)
    bits = tl.load(
        grad + sample * g_batch + (token * g_token + channel * g_channel), mask=there, other=0
    )
    if mask is not None:
        bits = tl.where(_is_padded(mask, sample, token, length, there), 0, bits)
    sample *= length * channels
    position = tl.load(code + sample + (token * channels + channel), mask=there, other=0).to(
        tl.int32
    )
    inside = there & (position >= 0) & (position < group_size)
    source = token // group_size * group_size + position
    if steps is not None:
        source = _source(source, _load_step(steps, channel, channels, length), length)
    tl.store(out + sample + (source * channels + channel), bits, mask=inside)


@triton.jit
def _load_pair(
    x, sample, token, channel, steps, x_batch, x_token, x_channel, length, channels, there
):  # fmt: skip
    second = token + 1
    if steps is not None:
        step = _load_step(steps, channel, channels, length)
        token, second = _source(token, step, length), _source(second, step, length)
    x += sample * x_batch + channel * x_channel
    return (
        tl.load(x + token * x_token, mask=there, other=0),
        tl.load(x + second * x_token, mask=there, other=0),
    )


@triton.jit
def _out_of_order(first, second, down, infinity, HALF: tl.constexpr):
    first, second = _widen(first, HALF), _widen(second, HALF)
    return _sort_key(second, down, infinity, HALF) < _sort_key(first, down, infinity, HALF)


@triton.jit
def sort_pairs(
    x, y, swaps, steps, descending, mask,
    x_batch, x_token, x_channel,
    length, channels, num_rows, leader_width, infinity,
    HALF: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    REFERENCE: tl.constexpr, ONE_LEADER: tl.constexpr,
):  # fmt: skip
    """Shift by `steps`, then sort groups of two.

    The kernel marks exchanged pairs in `swaps` (B, N/2, C).

    REFERENCE: use the order of the first of every `leader_width` channels. ONE_LEADER: the whole
    tile has the same reference channel. swaps, steps, descending and mask may be None.
    """
    sample, token, channel, there = _rows(length, channels, num_rows, 2, ROWS, CHANNELS)
    first, second = _load_pair(
        x, sample, token, channel, steps, x_batch, x_token, x_channel, length, channels, there
    )
    down = None
    if descending is not None:
        down = tl.load(descending + channel, mask=there, other=0) != 0
    swap = _out_of_order(first, second, down, infinity, HALF)
    if REFERENCE:
        leader = channel // leader_width * leader_width
        in_tile = there
        if ONE_LEADER:
            leader = tl.min(leader, 1, keep_dims=True)
            in_tile = tl.max(there.to(tl.int32), 1, keep_dims=True) != 0
        a, b = _load_pair(
            x, sample, token, leader, steps, x_batch, x_token, x_channel, length, channels,
            in_tile,
        )  # fmt: skip
        swap = swap ^ _out_of_order(a, b, None, infinity, HALF)
    low, high = tl.where(swap, second, first), tl.where(swap, first, second)
    if mask is not None:
        pad_low = _is_padded(mask, sample, token, length, there)
        pad_high = _is_padded(mask, sample, token + 1, length, there)
        swap = swap & ~(pad_low | pad_high)
        low = tl.where(pad_low, 0, tl.where(swap, second, first))
        high = tl.where(pad_high, 0, tl.where(swap, first, second))
    y += sample * length * channels + (token * channels + channel)
    tl.store(y, low, mask=there)
    tl.store(y + channels, high, mask=there)
    if swaps is not None:
        swaps += sample * (length // 2) * channels + (token // 2 * channels + channel)
        tl.store(swaps, swap.to(tl.int8), mask=there)


@triton.jit
def unsort_pairs(
    grad, swaps, out, mask,
    g_batch, g_token, g_channel,
    length, channels, num_rows,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Exchange the gradients of the pairs that `sort_pairs` exchanged."""
    sample, token, channel, there = _rows(length, channels, num_rows, 2, ROWS, CHANNELS)
    low, high = _load_pair(
        grad, sample, token, channel, None, g_batch, g_token, g_channel, length, channels, there
    )
    if mask is not None:
        low = tl.where(_is_padded(mask, sample, token, length, there), 0, low)
        high = tl.where(_is_padded(mask, sample, token + 1, length, there), 0, high)
    swaps += sample * (length // 2) * channels + (token // 2 * channels + channel)
    swap = tl.load(swaps, mask=there, other=0) != 0
    out += sample * length * channels + (token * channels + channel)
    tl.store(out, tl.where(swap, high, low), mask=there)
    tl.store(out + channels, tl.where(swap, low, high), mask=there)


@triton.jit
def unshift_pairs(
    grad, swaps, out, steps, mask,
    g_batch, g_token, g_channel,
    length, channels, num_rows,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Invert a shift and a sort of pairs for the gradient.

    Each token reads the gradient of its destination.
    """
    sample, token, channel, there = _rows(length, channels, num_rows, 1, ROWS, CHANNELS)
    position = token + _load_step(steps, channel, channels, length)
    position = tl.where(position >= length, position - length, position)
    swaps += sample * (length // 2) * channels + (position // 2 * channels + channel)
    position = position ^ (tl.load(swaps, mask=there, other=0) != 0).to(tl.int32)
    grad += sample * g_batch + (position * g_token + channel * g_channel)
    value = tl.load(grad, mask=there, other=0)
    if mask is not None:
        value = tl.where(_is_padded(mask, sample, position, length, there), 0, value)
    tl.store(out + sample * length * channels + (token * channels + channel), value, mask=there)


@triton.jit
def shift(
    x, y, steps, x_batch, x_token, x_channel, length, channels, num_rows,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute y[b, n, c] = x[b, (n - steps[c]) mod N, c]."""
    sample, token, channel, there = _rows(length, channels, num_rows, 1, ROWS, CHANNELS)
    source = _source(token, _load_step(steps, channel, channels, length), length)
    x += sample * x_batch + (source * x_token + channel * x_channel)
    y += sample * length * channels + (token * channels + channel)
    tl.store(y, tl.load(x, mask=there, other=0), mask=there)
