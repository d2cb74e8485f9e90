"""GPU kernels of the gradients of the linear recurrence.

The layouts of the tensors and the names are in `triton_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rifflemix.ops.recurrence.triton_kernels import (
    chunk_tokens,
    count_levels,
    dot,
    earlier,
    invert,
    load,
    load_decay,
    load_removal,
    pairs_at_level,
    products,
    square,
    state_rows,
    store,
    store_diagonal,
    store_matrix,
    sums,
    whole_decays,
)


@triton.jit
def sum_gradients(
    q, k, log_decay, a, b, grad, places, matrices, grad_states,
    heads, length, num_chunks, keys, values, decays,
    SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """Compute M of each chunk, and the gradient of the state before it through its outputs."""
    row, exists = chunk_tokens(places, heads, length, num_chunks, SIZE)
    state_row, state_exists = state_rows(keys, KEYS)
    log_decay = load_decay(log_decay, row, exists, decays, SIZE, DECAYS)
    since, until, whole = whole_decays(log_decay)
    q_tile = load(q, row, exists, keys, 0, KEYS)
    starts = tl.trans(q_tile * since)
    if b is None:
        store_diagonal(matrices, whole, keys, KEYS)
    else:
        a_tile = load(k if a is None else a, row, exists, keys, 0, KEYS)
        b_tile = load(b, row, exists, keys, 0, KEYS)
        read_a = tl.trans(products(q_tile, a_tile, log_decay))
        inverse = invert(earlier(products(b_tile, a_tile, log_decay)))
        store_matrix(matrices, a_tile, b_tile, inverse, since, until, whole, keys)
        b_starts, inverse = tl.trans(b_tile * since), tl.trans(inverse)
    for first in range(0, values, VALUES):
        slope = load(grad, row, exists, values, first, VALUES)
        found = dot(starts, slope)
        if b is not None:
            found -= dot(b_starts, dot(inverse, dot(read_a, slope)))
        store(grad_states, found, state_row, state_exists, values, first)


@triton.jit
def _features(x, decays: tl.constexpr):
    """Sum over the features if a head has one decay."""
    return tl.sum(x, 1, keep_dims=True) if decays == 1 else x


@triton.jit
def chunk_gradients(
    q, k, v, log_decay, a, b, grad, places, states, grad_states,
    grad_q, grad_k, grad_v, grad_log_decay, grad_a, grad_b,
    slopes_qk, slopes_bk, slopes_qa, slopes_ba,
    heads, length, num_chunks, keys, values, decays,
    SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the values, and of other tokens through the states of their chunk.

    They follow from the state before the chunk and from the gradient of the state after it. The
    slopes (SIZE, SIZE) are the gradients of inner products, for `add_pair_gradients`.
    """
    row, exists = chunk_tokens(places, heads, length, num_chunks, SIZE)
    state_row, state_exists = state_rows(keys, KEYS)
    has_decay: tl.constexpr = log_decay is not None
    log_decay = load_decay(log_decay, row, exists, decays, SIZE, DECAYS)
    since, until, whole = whole_decays(log_decay)
    q_tile = load(q, row, exists, keys, 0, KEYS)
    k_tile = load(k, row, exists, keys, 0, KEYS)
    read_k = products(q_tile, k_tile, log_decay)
    # Gradients of the inner products, and of the tokens through the two states.
    slope_qk = tl.zeros((SIZE, SIZE), tl.float32)
    slope_q, slope_k = tl.zeros((SIZE, KEYS), tl.float32), tl.zeros((SIZE, KEYS), tl.float32)
    slope_whole = tl.zeros((KEYS,), tl.float32)
    if b is not None:
        a_tile, b_tile, by_a, by_k, inverse = load_removal(
            a, b, k_tile, log_decay, row, exists, keys
        )
        read_a = read_k if a is None else products(q_tile, a_tile, log_decay)
        slope_bk, slope_b = tl.zeros_like(slope_qk), tl.zeros_like(slope_q)
        if a is not None:
            slope_qa, slope_ba = tl.zeros_like(slope_qk), tl.zeros_like(slope_qk)
            slope_a = tl.zeros_like(slope_q)
    for first in range(0, values, VALUES):
        state = load(states, state_row, state_exists, values, first, VALUES)
        later = load(grad_states, state_row, state_exists, values, first, VALUES)
        slope = load(grad, row, exists, values, first, VALUES)
        written = load(v, row, exists, values, first, VALUES)
        slope_v = dot(tl.trans(read_k), slope) + dot(k_tile * until, later)
        if b is not None:
            u = dot(inverse, dot(b_tile * since, state) + dot(by_k, written))
            slope_u = dot(tl.trans(read_a), slope) + dot(a_tile * until, later)
            slope_u = -dot(tl.trans(inverse), slope_u)
            slope_v += dot(tl.trans(by_k), slope_u)
            if a is None:
                written -= u
            else:
                slope_qa -= dot(slope, tl.trans(u))
                slope_ba -= dot(slope_u, tl.trans(u))
                slope_a -= dot(u, tl.trans(later))
            slope_bk += dot(slope_u, tl.trans(written))
            slope_b += dot(slope_u, tl.trans(state))
        store(grad_v, slope_v, row, exists, values, first)
        slope_qk += dot(slope, tl.trans(written))
        slope_q += dot(slope, tl.trans(state))
        slope_k += dot(written, tl.trans(later))
        slope_whole += tl.sum(state * later, 1)

    matrix_row, matrix_exists = state_rows(SIZE, SIZE)
    slope_q *= since
    slope_k *= until
    slope_since, slope_until = q_tile * slope_q, k_tile * slope_k
    store(slopes_qk, slope_qk, matrix_row, matrix_exists, SIZE, 0)
    store(grad_q, slope_q, row, exists, keys, 0)
    store(grad_k, slope_k, row, exists, keys, 0)
    if b is not None:
        slope_b *= since
        slope_since += b_tile * slope_b
        store(slopes_bk, earlier(slope_bk), matrix_row, matrix_exists, SIZE, 0)
        store(grad_b, slope_b, row, exists, keys, 0)
        if a is not None:
            slope_a *= until
            slope_until += a_tile * slope_a
            store(slopes_qa, slope_qa, matrix_row, matrix_exists, SIZE, 0)
            store(slopes_ba, earlier(slope_ba), matrix_row, matrix_exists, SIZE, 0)
            store(grad_a, slope_a, row, exists, keys, 0)
    if has_decay:
        at, column = square(SIZE)
        slope_decay = sums(at <= column, _features(slope_since, DECAYS))
        slope_decay += sums(at > column, _features(slope_until, DECAYS))
        slope_decay += _features((slope_whole * whole)[None, :], DECAYS)
        if DECAYS == 1:
            between = slope_qk * read_k
            if b is not None:
                between += slope_bk * by_k
                if a is not None:
                    between += slope_qa * read_a + slope_ba * by_a
            between = tl.where(at > column, dot((at <= column).to(tl.float32), between), 0.0)
            slope_decay += tl.sum(between, 1, keep_dims=True)
        store(grad_log_decay, slope_decay, row, exists, decays, 0)


@triton.jit
def add_pair_gradients(
    left, right, log_decay, slopes, places, grad_left, grad_right, grad_log_decay,
    heads, length, num_chunks, keys, decays,
    SIZE: tl.constexpr, KEYS: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """Add the gradients through the inner products of later and earlier tokens of each chunk.

    If a head has one decay, `chunk_gradients` has computed its gradient.
    """
    row, exists = chunk_tokens(places, heads, length, num_chunks, SIZE)
    has_decay: tl.constexpr = log_decay is not None
    log_decay = load_decay(log_decay, row, exists, decays, SIZE, DECAYS)
    left_tile = load(left, row, exists, keys, 0, KEYS)
    right_tile = load(right, row, exists, keys, 0, KEYS)
    slope_left = load(grad_left, row, exists, keys, 0, KEYS)
    slope_right = load(grad_right, row, exists, keys, 0, KEYS)
    if has_decay and DECAYS != 1:
        slope_decay = load(grad_log_decay, row, exists, decays, 0, DECAYS)
    matrix_row, matrix_exists = state_rows(SIZE, SIZE)
    slope = load(slopes, matrix_row, matrix_exists, SIZE, 0, SIZE)
    at, column = square(SIZE)
    for level in range(count_levels(SIZE, DECAYS)):
        since, until, pairs = pairs_at_level(log_decay, level)
        part = slope * pairs
        more_left = dot(part, right_tile * until) * since
        more_right = dot(tl.trans(part), left_tile * since) * until
        slope_left += more_left
        slope_right += more_right
        if has_decay and DECAYS != 1:
            near = ((2 * (at ^ column) + 1) >> level) == 0
            slope_decay += sums(near & (at <= column), left_tile * more_left)
            slope_decay += sums(near & (at > column), right_tile * more_right)
    tl.debug_barrier()  # another thread may write what this thread reads
    store(grad_left, slope_left, row, exists, keys, 0)
    store(grad_right, slope_right, row, exists, keys, 0)
    if has_decay and DECAYS != 1:
        store(grad_log_decay, slope_decay, row, exists, decays, 0)
