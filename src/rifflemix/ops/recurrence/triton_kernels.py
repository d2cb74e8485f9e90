"""GPU kernels of the linear recurrence, for all variants.

The first kernel computes a matrix M and an addition A for each chunk of tokens, so that the state
after the chunk is M S + A. The second kernel runs over the chunks of a sequence, and the third one
reads the states. The backward pass does the same in reverse with the transposed M. The equations
are in `eager`: u are the values that a token removes, "since" and "until" are the logarithms of the
decays before and after a token.

Tokens are float32 with contiguous (B, N, H, F) storage, states (B, chunks, H, D, E). A removal
without `a` is the delta rule, a = k. A logarithm of a decay is a sum of the logarithms of tokens
and never a difference of two sums. So decays near 0 and 1 keep their digits next to each other.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def _log2(power):
    return int(power).bit_length() - 1


@triton.constexpr_function
def count_levels(size, decays):
    """Return the number of levels in `pairs_at_level`."""
    return 1 if decays == 1 else int(size).bit_length()


@triton.jit
def dot(x, y):
    """Multiply matrices with the precision of float32."""
    return tl.dot(x, y, input_precision="tf32x3")


@triton.jit
def load(x, row, exists, features, first, WIDTH: tl.constexpr):
    """Load rows of a matrix with `features` columns, from column `first` on."""
    feature = first + tl.arange(0, WIDTH)
    place = x + row[:, None] * features + feature[None, :]
    return tl.load(place, mask=exists[:, None] & (feature < features)[None, :], other=0.0)


@triton.jit
def store(x, value, row, exists, features, first):
    """Store rows of a matrix; see `load`."""
    feature = first + tl.arange(0, value.shape[1])
    place = x + row[:, None] * features + feature[None, :]
    tl.store(place, value, mask=exists[:, None] & (feature < features)[None, :])


@triton.jit
def chunk_tokens(places, heads, length, num_chunks, SIZE: tl.constexpr):
    """Return the rows of the program's tokens, and which of them exist.

    `places` contains the first token of each chunk, then the end of its sequence.
    """
    program = tl.program_id(0)
    chunk, batch = program // heads % num_chunks, (program // heads // num_chunks).to(tl.int64)
    if places is None:
        first, end = (chunk * SIZE).to(tl.int64), length
    else:
        first, end = tl.load(places + chunk), tl.load(places + num_chunks + chunk)
    token = first + tl.arange(0, SIZE)
    return (batch * length + token) * heads + program % heads, token < end


@triton.jit
def state_rows(keys, KEYS: tl.constexpr):
    """Return the rows of the state before the program's chunk, and which of them exist."""
    feature = tl.arange(0, KEYS)
    return tl.program_id(0).to(tl.int64) * keys + feature, feature < keys


@triton.jit
def load_decay(x, row, exists, decays, SIZE: tl.constexpr, DECAYS: tl.constexpr):
    """Load the logarithms of the decays (SIZE, DECAYS)."""
    found = tl.zeros((SIZE, DECAYS), tl.float32)
    if x is not None:
        # exp(-800) is 0. A sum of finite numbers is never NaN.
        found = load(x, row, exists, decays, 0, DECAYS)
        found = tl.maximum(found, -800.0, propagate_nan=tl.PropagateNan.ALL)
    return found


@triton.jit
def square(SIZE: tl.constexpr):
    """Return the row and the column of each entry of a square matrix."""
    return tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]


@triton.jit
def sums(mask, x):
    """Compute sums over the tokens that a row of `mask` contains."""
    if x.shape[1] == 1:
        found = tl.sum(tl.where(mask, tl.trans(x), 0.0), 1, keep_dims=True)
    else:
        found = dot(mask.to(tl.float32), x)
    return found


@triton.jit
def whole_decays(log_decay):
    """Return the decays since the start of the chunk, until its end, and over the chunk."""
    row, column = square(log_decay.shape[0])
    since, until = sums(column <= row, log_decay), sums(column > row, log_decay)
    return tl.exp(since), tl.exp(until), tl.exp(tl.sum(log_decay, 0))


@triton.jit
def pairs_at_level(log_decay, level):
    """Return factors of the decays between two tokens, and the pairs of tokens that they serve.

    The later token of a pair gets the first factor and the earlier token the second one. Both are
    relative to a token between the two, so their exponents are at most 0. The levels share out all
    pairs, by the size of the smallest block that contains both tokens. If a head has one decay, a
    single level contains the decays of all pairs.
    """
    row, column = square(log_decay.shape[0])
    if log_decay.shape[1] == 1:
        between = dot((column <= row).to(tl.float32), tl.where(row > column, log_decay, 0.0))
        since, until, pairs = 1.0, 1.0, tl.where(row >= column, tl.exp(between), 0.0)
    else:
        block = 2 * (row ^ column) + 1
        near = (block >> level) == 0
        since = tl.exp(sums(near & (column <= row), log_decay))
        until = tl.exp(sums(near & (column > row), log_decay))
        pairs = (((block >> level) == 1) & (row >= column)).to(tl.float32)
    return since, until, pairs


@triton.jit
def products(left, right, log_decay):
    """Compute decayed inner products of each token on the left and each earlier one, or itself."""
    found = tl.zeros((left.shape[0], left.shape[0]), tl.float32)
    for level in range(count_levels(left.shape[0], log_decay.shape[1])):
        since, until, pairs = pairs_at_level(log_decay, level)
        found += dot(left * since, tl.trans(right * until)) * pairs
    return found


@triton.jit
def earlier(matrix):
    """Set the diagonal of a lower triangular matrix to 0."""
    row, column = square(matrix.shape[0])
    return tl.where(row > column, matrix, 0.0)


@triton.jit
def invert(matrix):
    """Invert 1 + a strictly lower triangular matrix, by joining blocks on the diagonal in pairs."""
    row, column = square(matrix.shape[0])
    found = (row == column).to(tl.float32)
    for level in range(_log2(matrix.shape[0])):
        below = tl.where(((row ^ column) >> level) == 1, matrix, 0.0)
        found -= dot(found, dot(below, found))
    return found


@triton.jit
def load_removal(a, b, k_tile, log_decay, row, exists, keys):
    """Load a and b; compute the products of b with earlier a and k, and the inverse."""
    b_tile = load(b, row, exists, keys, 0, k_tile.shape[1])
    a_tile = k_tile if a is None else load(a, row, exists, keys, 0, k_tile.shape[1])
    by_a = earlier(products(b_tile, a_tile, log_decay))
    by_k = by_a if a is None else earlier(products(b_tile, k_tile, log_decay))
    return a_tile, b_tile, by_a, by_k, invert(by_a)


@triton.jit
def store_diagonal(matrices, whole, keys, KEYS: tl.constexpr):
    """Store the diagonal of M of a chunk without removals."""
    row, exists = state_rows(keys, KEYS)
    tl.store(matrices + row, tl.broadcast_to(whole, (KEYS,)), mask=exists)


@triton.jit
def store_matrix(matrices, a_tile, b_tile, inverse, since, until, whole, keys):
    """Compute and store M of a chunk with removals."""
    row, exists = state_rows(keys, a_tile.shape[1])
    at, column = square(a_tile.shape[1])
    removed = dot(tl.trans(a_tile * until), dot(inverse, b_tile * since))
    matrix = tl.where(at == column, whole[None, :], 0.0) - removed
    store(matrices, matrix, row, exists, keys, 0)


@triton.jit
def sum_chunks(
    k, v, log_decay, a, b, places, matrices, states, heads, length, num_chunks, keys, values,
    decays, SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """Compute M and A of each chunk.

    Without removal M is diagonal, and `matrices` contains the diagonals.
    """
    row, exists = chunk_tokens(places, heads, length, num_chunks, SIZE)
    state_row, state_exists = state_rows(keys, KEYS)
    log_decay = load_decay(log_decay, row, exists, decays, SIZE, DECAYS)
    since, until, whole = whole_decays(log_decay)
    k_tile = load(k, row, exists, keys, 0, KEYS)
    ends = tl.trans(k_tile * until)
    if b is None:
        store_diagonal(matrices, whole, keys, KEYS)
    else:
        a_tile, b_tile, _, by_k, inverse = load_removal(a, b, k_tile, log_decay, row, exists, keys)
        store_matrix(matrices, a_tile, b_tile, inverse, since, until, whole, keys)
        a_ends = tl.trans(a_tile * until)
    for first in range(0, values, VALUES):
        v_tile = load(v, row, exists, values, first, VALUES)
        addition = dot(ends, v_tile)
        if b is not None:
            addition -= dot(a_ends, dot(inverse, dot(by_k, v_tile)))
        store(states, addition, state_row, state_exists, values, first)


@triton.jit
def scan_chunks(
    matrices, states, start, end, bounds, heads, num_chunks, keys, values,
    KEYS: tl.constexpr, VALUES: tl.constexpr, DIAGONAL: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """Replace A of each chunk by the state before the chunk.

    REVERSED computes the gradients of the states after the chunks, with the transposed M.
    """
    program, blocks = tl.program_id(0), tl.cdiv(values, VALUES)
    column, head = program % blocks * VALUES, program // blocks % heads
    sequence = program // blocks // heads
    if bounds is None:
        chunk, num_steps = sequence.to(tl.int64) * num_chunks, num_chunks
    else:
        chunk = tl.load(bounds + sequence)
        num_steps = (tl.load(bounds + sequence + 1) - chunk).to(tl.int32)
    if REVERSED:
        chunk += num_steps - 1
    feature = tl.arange(0, KEYS)
    exists = feature < keys
    row = (sequence.to(tl.int64) * heads + head) * keys + feature
    if start is None:
        state = tl.zeros((KEYS, VALUES), tl.float32)
    else:
        state = load(start, row, exists, values, column, VALUES)
    for _ in range(num_steps):
        at = (chunk * heads + head) * keys + feature
        addition = load(states, at, exists, values, column, VALUES)
        tl.debug_barrier()  # another thread may write what this thread reads
        store(states, state, at, exists, values, column)
        if DIAGONAL:
            state *= tl.load(matrices + at, mask=exists, other=0.0)[:, None]
            state += addition
        else:
            matrix = load(matrices, at, exists, keys, 0, KEYS)
            state = dot(tl.trans(matrix) if REVERSED else matrix, state) + addition
        chunk += -1 if REVERSED else 1
    store(end, state, row, exists, values, column)


@triton.jit
def read_chunks(
    q, k, v, log_decay, a, b, places, states, y, heads, length, num_chunks, keys, values, decays,
    SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of each chunk from the state before it."""
    row, exists = chunk_tokens(places, heads, length, num_chunks, SIZE)
    state_row, state_exists = state_rows(keys, KEYS)
    log_decay = load_decay(log_decay, row, exists, decays, SIZE, DECAYS)
    since, _, _ = whole_decays(log_decay)
    q_tile = load(q, row, exists, keys, 0, KEYS)
    k_tile = load(k, row, exists, keys, 0, KEYS)
    read_k = products(q_tile, k_tile, log_decay)
    if b is not None:
        a_tile, b_tile, _, by_k, inverse = load_removal(a, b, k_tile, log_decay, row, exists, keys)
        read_a = read_k if a is None else products(q_tile, a_tile, log_decay)
        b_tile *= since
    q_tile *= since
    for first in range(0, values, VALUES):
        state = load(states, state_row, state_exists, values, first, VALUES)
        v_tile = load(v, row, exists, values, first, VALUES)
        found = dot(q_tile, state) + dot(read_k, v_tile)
        if b is not None:
            found -= dot(read_a, dot(inverse, dot(b_tile, state) + dot(by_k, v_tile)))
        store(y, found, row, exists, values, first)
