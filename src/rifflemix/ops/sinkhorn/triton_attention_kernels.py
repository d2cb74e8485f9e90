"""GPU kernels of Sparse Sinkhorn attention.

The sort kernels run first, then the attention kernels. Sorted keys and values are (B, H, R b, D),
contiguous, so the r sorted blocks of query block u are adjacent. Other tokens may have any strides
but need contiguous features. A sort program processes some positions of all blocks; an attention
program processes one block of queries. Masks are unsigned bytes, 1 = hidden: `unseen` (B, H, R b)
for sorted keys, `padding` (B, N) for local keys.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _columns(group, block_size, width, POSITIONS: tl.constexpr, WIDTH: tl.constexpr):
    """Return position, feature and validity of each column of a tile."""
    column = tl.arange(0, POSITIONS * WIDTH)
    position, feature = group * POSITIONS + column // WIDTH, column % WIDTH
    return position, feature, (position < block_size) & (feature < width)


@triton.jit
def _in_blocks(
    x, padding, batch, head, stride_batch, stride_head, stride_token, position, feature, there,
    blocks, block_size, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return pointers (BLOCKS, columns) to the same positions of every block, and their mask.

    The mask excludes `padding`.
    """
    block = tl.arange(0, BLOCKS)[:, None]
    token = (block * block_size + position[None, :]).to(tl.int64)
    exists = (block < blocks) & there[None, :]
    if padding is not None:
        place = padding + batch * blocks * block_size + token
        exists = exists & (tl.load(place, mask=exists, other=1) == 0)
    x += batch * stride_batch + head * stride_head
    return x + token * stride_token + feature[None, :], exists


@triton.jit
def _sorted_rows(
    x, of_head, position, feature, there, rows, block_size, width, ROWS: tl.constexpr
):  # fmt: skip
    """Return pointers (ROWS, columns) into all sorted blocks, and a mask."""
    row = tl.arange(0, ROWS)[:, None]
    token = (of_head * rows + row) * block_size + position[None, :]
    return x + token * width + feature[None, :], (row < rows) & there[None, :]


@triton.jit
def _weights(sort, of_head, rows, blocks, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Load the sort matrix (ROWS, BLOCKS) of a head."""
    row, block = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCKS)[None, :]
    offset = (of_head * rows + row) * blocks + block
    return tl.load(sort + offset, mask=(row < rows) & (block < blocks), other=0.0)


@triton.jit
def _sort(
    x, padding, sorted_x, weight, of_head, batch, head, x_batch, x_head, x_token,
    position, feature, there, rows, blocks, block_size, width,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write sums of the blocks of `x` with weights (ROWS, BLOCKS)."""
    place, exists = _in_blocks(
        x, padding, batch, head, x_batch, x_head, x_token, position, feature, there, blocks,
        block_size, BLOCKS,
    )  # fmt: skip
    tile = tl.dot(weight, tl.load(place, mask=exists, other=0.0), input_precision="tf32x3")
    place, exists = _sorted_rows(
        sorted_x, of_head, position, feature, there, rows, block_size, width, ROWS
    )
    tl.store(place, tile.to(sorted_x.dtype.element_ty), mask=exists)


@triton.jit
def sort_tokens(
    k, v, sort, padding, sorted_k, sorted_v,
    k_batch, k_head, k_token, v_batch, v_head, v_token, heads, rows, blocks, block_size, width,
    POSITIONS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Sort the blocks of keys and values with the sort matrix.

    Tokens in `padding` count as zeros.
    """
    groups = tl.cdiv(block_size, POSITIONS)
    of_head = (tl.program_id(0) // groups).to(tl.int64)
    batch, head = of_head // heads, of_head % heads
    position, feature, there = _columns(
        tl.program_id(0) % groups, block_size, width, POSITIONS, WIDTH
    )
    weight = _weights(sort, of_head, rows, blocks, ROWS, BLOCKS)
    _sort(
        k, padding, sorted_k, weight, of_head, batch, head, k_batch, k_head, k_token,
        position, feature, there, rows, blocks, block_size, width, ROWS, BLOCKS,
    )  # fmt: skip
    _sort(
        v, padding, sorted_v, weight, of_head, batch, head, v_batch, v_head, v_token,
        position, feature, there, rows, blocks, block_size, width, ROWS, BLOCKS,
    )  # fmt: skip


@triton.jit
def _through_sort(
    x, padding, grad_sorted, grad, of_head, batch, head, x_batch, x_head, x_token,
    g_batch, g_head, g_token, position, feature, there, weight, sum_of_sort,
    rows, blocks, block_size, width, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Add the sorted blocks' gradient to `grad`; return the weights' gradient."""
    place, exists = _sorted_rows(
        grad_sorted, of_head, position, feature, there, rows, block_size, width, ROWS
    )
    slope = tl.load(place, mask=exists, other=0.0)
    place, exists = _in_blocks(
        x, padding, batch, head, x_batch, x_head, x_token, position, feature, there, blocks,
        block_size, BLOCKS,
    )  # fmt: skip
    tile = tl.load(place, mask=exists, other=0.0)
    sum_of_sort += tl.dot(slope, tl.trans(tile), input_precision="tf32x3")
    place, exists = _in_blocks(
        grad, padding, batch, head, g_batch, g_head, g_token, position, feature, there, blocks,
        block_size, BLOCKS,
    )  # fmt: skip
    total = tl.load(place, mask=exists, other=0.0).to(tl.float32)
    total += tl.dot(tl.trans(weight), slope, input_precision="tf32x3")
    tl.store(place, total.to(grad.dtype.element_ty), mask=exists)
    return sum_of_sort


@triton.jit
def sort_gradient(
    k, v, sort, padding, grad_sorted_k, grad_sorted_v, grad_k, grad_v, sums,
    k_batch, k_head, k_token, v_batch, v_head, v_token, g_batch, g_head, g_token,
    heads, rows, blocks, block_size, width, parts,
    GROUPS: tl.constexpr, POSITIONS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Add the gradients of sorted tokens to grad_k and grad_v.

    Write partial sums of the sort matrix's gradient to `sums` (B, H, parts, R, n).
    """
    of_head, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    batch, head = of_head // heads, of_head % heads
    weight = _weights(sort, of_head, rows, blocks, ROWS, BLOCKS)
    sum_of_sort = tl.zeros((ROWS, BLOCKS), tl.float32)
    for step in range(GROUPS):
        position, feature, there = _columns(
            part * GROUPS + step, block_size, width, POSITIONS, WIDTH
        )
        sum_of_sort = _through_sort(
            k, padding, grad_sorted_k, grad_k, of_head, batch, head, k_batch, k_head,
            k_token, g_batch, g_head, g_token, position, feature, there, weight, sum_of_sort,
            rows, blocks, block_size, width, ROWS, BLOCKS,
        )  # fmt: skip
        sum_of_sort = _through_sort(
            v, padding, grad_sorted_v, grad_v, of_head, batch, head, v_batch, v_head,
            v_token, g_batch, g_head, g_token, position, feature, there, weight, sum_of_sort,
            rows, blocks, block_size, width, ROWS, BLOCKS,
        )  # fmt: skip
    row, block = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCKS)[None, :]
    offset = ((of_head * parts + part) * rows + row) * blocks + block
    tl.store(sums + offset, sum_of_sort, mask=(row < rows) & (block < blocks))


@triton.jit
def _tokens(
    first, count, start, stride_token, width, TOKENS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Return offsets of the tokens from first + start on, and a mask."""
    token, feature = start + tl.arange(0, TOKENS)[:, None], tl.arange(0, WIDTH)[None, :]
    offset = (first + token).to(tl.int64) * stride_token + feature
    return offset, (token < count) & (feature < width)


@triton.jit
def _seen(hidden, start, count, CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Return a (QUERIES, KEYS) mask of visible keys from `start` on."""
    key = start + tl.arange(0, KEYS)
    seen = key < count
    if hidden is not None:
        seen = seen & (tl.load(hidden + key, mask=seen, other=1) == 0)
    seen = tl.broadcast_to(seen[None, :], (QUERIES, KEYS))
    if CAUSAL:
        seen = seen & (key[None, :] <= tl.arange(0, QUERIES)[:, None])
    return seen


@triton.jit
def _keys(
    x, hidden, first, count, start, stride_token, width, KEYS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Load keys (KEYS, WIDTH) from `start` on; hidden keys are zero."""
    offset, exists = _tokens(first, count, start, stride_token, width, KEYS, WIDTH)
    if hidden is not None:
        key = start + tl.arange(0, KEYS)
        exists = exists & (tl.load(hidden + key, mask=key < count, other=1) == 0)[:, None]
    return tl.load(x + offset, mask=exists, other=0.0)


@triton.jit
def _kept(
    seed, p, of_head, own, start, OWN: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """Return a (QUERIES, KEYS) dropout mask for keys from `start` on.

    Each Philox counter generates the numbers of four keys. The counter consists of the query's
    token, the index of the group of four keys, OWN (sorted or local keys), and the head.
    """
    zero = tl.zeros((QUERIES, KEYS // 4), tl.int32)
    token = zero + (own + tl.arange(0, QUERIES))[:, None]
    keys = zero + (start // 4 + tl.arange(0, KEYS // 4))[None, :]
    a, b, c, d = tl.philox(tl.load(seed), token, keys, zero + OWN, zero + of_head.to(tl.int32))
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (QUERIES, KEYS))
    return tl.uint_to_uniform_float(words) >= p


@triton.jit
def _attend(
    queries, k, v, hidden, first, count, k_token, v_token, width, scale, best, total, out,
    seed, p, of_head, own, OWN: tl.constexpr, CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add `count` keys to a running softmax with base-2 logits."""
    for start in range(0, count, KEYS):
        keys = _keys(k, hidden, first, count, start, k_token, width, KEYS, WIDTH)
        values = _keys(v, hidden, first, count, start, v_token, width, KEYS, WIDTH)
        logits = scale * tl.dot(queries, tl.trans(keys), input_precision="tf32x3")
        seen = _seen(hidden, start, count, CAUSAL, QUERIES, KEYS)
        logits = tl.where(seen, logits, float("-inf"))
        higher = tl.maximum(best, tl.max(logits, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # no visible key so far
        share = tl.exp2(logits - finite[:, None])
        kept = tl.exp2(best - finite)
        total = total * kept + tl.sum(share, 1)
        out = out * kept[:, None]
        if seed is not None:
            share = tl.where(_kept(seed, p, of_head, own, start, OWN, QUERIES, KEYS), share, 0.0)
        out += tl.dot(share.to(values.dtype), values, input_precision="tf32x3")
        best = higher
    return best, total, out


@triton.jit
def attend(
    q, k, v, sorted_k, sorted_v, unseen, padding, seed, y, log_sums,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    y_batch, y_head, y_token, heads, blocks, block_size, count, width, scale, p,
    CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Attend from each query block to sorted and local keys.

    Dropout needs a seed, () int64, and drops weights with probability `p`.
    """
    of_head, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    batch, head = of_head // heads, of_head % heads
    own, sorted_here = block * block_size, (of_head * blocks + block) * count
    if unseen is not None:
        unseen += sorted_here
    if padding is not None:
        padding += batch * blocks * block_size + own
    offset, exists = _tokens(own, block_size, 0, q_token, width, QUERIES, WIDTH)
    q += batch * q_batch + head * q_head
    queries = tl.load(q + offset, mask=exists, other=0.0)
    best = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    out = tl.zeros((QUERIES, WIDTH), tl.float32)
    scale = scale * 1.4426950408889634  # base-2 logits
    best, total, out = _attend(
        queries, sorted_k, sorted_v, unseen, sorted_here, count, width, width, width, scale,
        best, total, out, seed, p, of_head, own, False, False, QUERIES, KEYS, WIDTH,
    )  # fmt: skip
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    best, total, out = _attend(
        queries, k, v, padding, own, block_size, k_token, v_token, width, scale,
        best, total, out, seed, p, of_head, own, True, CAUSAL, QUERIES, KEYS, WIDTH,
    )  # fmt: skip
    total = tl.where(total == 0.0, 1.0, total)  # 0 if a query has no visible key
    token = tl.arange(0, QUERIES)
    log_sums += of_head * blocks * block_size + own + token
    tl.store(log_sums, (best + tl.log2(total)) * 0.6931471805599453, mask=token < block_size)
    out = out / ((1.0 - p) * total)[:, None]
    offset, exists = _tokens(own, block_size, 0, y_token, width, QUERIES, WIDTH)
    y += batch * y_batch + head * y_head
    tl.store(y + offset, out.to(y.dtype.element_ty), mask=exists)


@triton.jit
def _attend_gradient(
    queries, slope, log_sums, through, k, v, hidden, grad_k, grad_v, first, count,
    k_token, v_token, g_token, width, scale, grad, seed, p, of_head, own,
    OWN: tl.constexpr, CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write key and value gradients; return the updated query gradient."""
    for start in range(0, count, KEYS):
        keys = _keys(k, hidden, first, count, start, k_token, width, KEYS, WIDTH)
        values = _keys(v, hidden, first, count, start, v_token, width, KEYS, WIDTH)
        logits = scale * tl.dot(queries, tl.trans(keys), input_precision="tf32x3")
        seen = _seen(hidden, start, count, CAUSAL, QUERIES, KEYS)
        power = tl.where(seen, logits - log_sums[:, None], float("-inf"))
        share = tl.exp2(1.4426950408889634 * power)
        grad_share = tl.dot(slope, tl.trans(values), input_precision="tf32x3")
        dropped = share
        if seed is not None:
            kept = _kept(seed, p, of_head, own, start, OWN, QUERIES, KEYS)
            dropped = tl.where(kept, share / (1.0 - p), 0.0)
            grad_share = tl.where(kept, grad_share / (1.0 - p), 0.0)
        grad_logits = (scale * share * (grad_share - through[:, None])).to(keys.dtype)
        grad += tl.dot(grad_logits, keys, input_precision="tf32x3")
        offset, exists = _tokens(first, count, start, g_token, width, KEYS, WIDTH)
        of_keys = tl.dot(tl.trans(grad_logits), queries, input_precision="tf32x3")
        tl.store(grad_k + offset, of_keys.to(keys.dtype), mask=exists)
        of_values = tl.dot(tl.trans(dropped.to(slope.dtype)), slope, input_precision="tf32x3")
        tl.store(grad_v + offset, of_values.to(keys.dtype), mask=exists)
    return grad


@triton.jit
def attend_gradient(
    q, k, v, sorted_k, sorted_v, unseen, padding, seed, y, log_sums, grad_y,
    grad_q, grad_k, grad_v, grad_sorted_k, grad_sorted_v,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    y_batch, y_head, y_token, s_batch, s_head, s_token, g_batch, g_head, g_token,
    heads, blocks, block_size, count, width, scale, p,
    CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of `attend`.

    Each key belongs to one query block, so gradients of different blocks are not added.
    """
    of_head, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    batch, head = of_head // heads, of_head % heads
    own, sorted_here = block * block_size, (of_head * blocks + block) * count
    if unseen is not None:
        unseen += sorted_here
    if padding is not None:
        padding += batch * blocks * block_size + own
    offset, exists = _tokens(own, block_size, 0, q_token, width, QUERIES, WIDTH)
    queries = tl.load(q + batch * q_batch + head * q_head + offset, mask=exists, other=0.0)
    offset, exists = _tokens(own, block_size, 0, s_token, width, QUERIES, WIDTH)
    slope = tl.load(grad_y + batch * s_batch + head * s_head + offset, mask=exists, other=0.0)
    offset, exists = _tokens(own, block_size, 0, y_token, width, QUERIES, WIDTH)
    made = tl.load(y + batch * y_batch + head * y_head + offset, mask=exists, other=0.0)
    through = tl.sum(made.to(tl.float32) * slope.to(tl.float32), 1)
    token = tl.arange(0, QUERIES)
    log_sums += of_head * blocks * block_size + own + token
    log_sum = tl.load(log_sums, mask=token < block_size, other=0.0)
    grad = tl.zeros((QUERIES, WIDTH), tl.float32)
    grad = _attend_gradient(
        queries, slope, log_sum, through, sorted_k, sorted_v, unseen, grad_sorted_k, grad_sorted_v,
        sorted_here, count, width, width, width, width, scale, grad, seed, p, of_head, own,
        False, False, QUERIES, KEYS, WIDTH,
    )  # fmt: skip
    to_head = batch * g_batch + head * g_head
    grad = _attend_gradient(
        queries, slope, log_sum, through, k + batch * k_batch + head * k_head,
        v + batch * v_batch + head * v_head, padding, grad_k + to_head, grad_v + to_head,
        own, block_size, k_token, v_token, g_token, width, scale, grad, seed, p, of_head, own,
        True, CAUSAL, QUERIES, KEYS, WIDTH,
    )  # fmt: skip
    offset, exists = _tokens(own, block_size, 0, g_token, width, QUERIES, WIDTH)
    tl.store(grad_q + to_head + offset, grad.to(queries.dtype), mask=exists)


@triton.jit
def _write_kept(
    kept, seed, p, of_head, first, own, count, block_size, keys, OWN: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the dropout mask of `count` keys from column `first` on."""
    token = tl.arange(0, QUERIES)[:, None]
    for start in range(0, count, KEYS):
        key = start + tl.arange(0, KEYS)[None, :]
        is_kept = _kept(seed, p, of_head, own, start, OWN, QUERIES, KEYS)
        place = kept + token * keys + first + key
        tl.store(place, is_kept.to(tl.uint8), mask=(token < block_size) & (key < count))


@triton.jit
def kept_weights(
    seed, kept, blocks, block_size, count, p, QUERIES: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """Write the dropout mask of `attend`, (B, H, n, b, count + b)."""
    of_head, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    own, keys = block * block_size, count + block_size
    kept += (of_head * blocks + block) * block_size * keys
    _write_kept(
        kept, seed, p, of_head, 0, own, count, block_size, keys, False, QUERIES, KEYS
    )  # fmt: skip
    _write_kept(
        kept, seed, p, of_head, count, own, block_size, block_size, keys, True, QUERIES, KEYS
    )  # fmt: skip
