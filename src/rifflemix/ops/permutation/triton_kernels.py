"""GPU kernels of the permutation family that need no sorting network: pairs, shifts and scatters.

The kernels read values as integers of 16 or 32 bits (`HALF`). `triton_window_kernels` sorts longer
groups.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sort_key(bits, down, infinity, HALF: tl.constexpr):
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
def widen(bits, HALF: tl.constexpr):
    return bits.to(tl.int32) if HALF == 16 else bits.to(tl.int64)


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
def load_step(steps, channel, channels, length):
    """Load the steps of channels and reduce them to 0..length - 1.

    Steps may have any size and sign. There is one step per channel, not per token.
    """
    step = tl.load(steps + channel, mask=channel < channels, other=0) % length
    return tl.where(step < 0, step + length, step).to(tl.int32)


@triton.jit
def source_of(token, step, length):
    """Return the source token of a shift by 0 <= step < length."""
    return tl.where(token < step, token + length - step, token - step)


@triton.jit
def is_padded(mask, sample, token, length, there):
    return tl.load(mask + sample * length + token, mask=there, other=0) != 0


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
        bits = tl.where(is_padded(mask, sample, token, length, there), 0, bits)
    sample *= length * channels
    position = tl.load(code + sample + (token * channels + channel), mask=there, other=0).to(
        tl.int32
    )
    inside = there & (position >= 0) & (position < group_size)
    source = token // group_size * group_size + position
    if steps is not None:
        source = source_of(source, load_step(steps, channel, channels, length), length)
    tl.store(out + sample + (source * channels + channel), bits, mask=inside)


@triton.jit
def _load_pair(
    x, sample, token, channel, steps, x_batch, x_token, x_channel, length, channels, there
):  # fmt: skip
    second = token + 1
    if steps is not None:
        step = load_step(steps, channel, channels, length)
        token, second = source_of(token, step, length), source_of(second, step, length)
    x += sample * x_batch + channel * x_channel
    return (
        tl.load(x + token * x_token, mask=there, other=0),
        tl.load(x + second * x_token, mask=there, other=0),
    )


@triton.jit
def _out_of_order(first, second, down, infinity, HALF: tl.constexpr):
    first, second = widen(first, HALF), widen(second, HALF)
    return sort_key(second, down, infinity, HALF) < sort_key(first, down, infinity, HALF)


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
        pad_low = is_padded(mask, sample, token, length, there)
        pad_high = is_padded(mask, sample, token + 1, length, there)
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
        low = tl.where(is_padded(mask, sample, token, length, there), 0, low)
        high = tl.where(is_padded(mask, sample, token + 1, length, there), 0, high)
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
    position = token + load_step(steps, channel, channels, length)
    position = tl.where(position >= length, position - length, position)
    swaps += sample * (length // 2) * channels + (position // 2 * channels + channel)
    position = position ^ (tl.load(swaps, mask=there, other=0) != 0).to(tl.int32)
    grad += sample * g_batch + (position * g_token + channel * g_channel)
    value = tl.load(grad, mask=there, other=0)
    if mask is not None:
        value = tl.where(is_padded(mask, sample, position, length, there), 0, value)
    tl.store(out + sample * length * channels + (token * channels + channel), value, mask=there)


@triton.jit
def shift(
    x, y, steps, x_batch, x_token, x_channel, length, channels, num_rows,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute y[b, n, c] = x[b, (n - steps[c]) mod N, c]."""
    sample, token, channel, there = _rows(length, channels, num_rows, 1, ROWS, CHANNELS)
    source = source_of(token, load_step(steps, channel, channels, length), length)
    x += sample * x_batch + (source * x_token + channel * x_channel)
    y += sample * length * channels + (token * channels + channel)
    tl.store(y, tl.load(x, mask=there, other=0), mask=there)
