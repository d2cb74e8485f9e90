"""GPU kernels of Sparse Sinkhorn attention without masks.

Blocks are sorted first, and then attended to: sorted keys and values are (B, H, R b, D), in one
piece, so that the r blocks that query block u sees lie together. Tokens are read and written
wherever they lie, with their features side by side. Programs that sort hold some positions of all
blocks, those that attend a block of queries.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _columns(group, block_size, width, POSITIONS: tl.constexpr, WIDTH: tl.constexpr):
    """Position in the block and feature of each column, and which of them exist."""
    column = tl.arange(0, POSITIONS * WIDTH)
    position, feature = group * POSITIONS + column // WIDTH, column % WIDTH
    return position, feature, (position < block_size) & (feature < width)


@triton.jit
def _in_blocks(
    x, batch, head, stride_batch, stride_head, stride_token, position, feature, there,
    blocks, block_size, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Pointers (BLOCKS, columns) to the same positions of every block, and which exist."""
    block = tl.arange(0, BLOCKS)[:, None]
    token = (block * block_size + position[None, :]).to(tl.int64)
    x += batch * stride_batch + head * stride_head
    return x + token * stride_token + feature[None, :], (block < blocks) & there[None, :]


@triton.jit
def _sorted_rows(
    x, of_head, position, feature, there, rows, block_size, width, ROWS: tl.constexpr
):  # fmt: skip
    """Pointers (ROWS, columns) to the same positions of every sorted block, and which exist."""
    row = tl.arange(0, ROWS)[:, None]
    token = (of_head * rows + row) * block_size + position[None, :]
    return x + token * width + feature[None, :], (row < rows) & there[None, :]


@triton.jit
def _weights(sort, of_head, rows, blocks, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """The sort matrix (ROWS, BLOCKS) of a head."""
    row, block = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCKS)[None, :]
    offset = (of_head * rows + row) * blocks + block
    return tl.load(sort + offset, mask=(row < rows) & (block < blocks), other=0.0)


@triton.jit
def _sort(
    x, sorted_x, weight, of_head, batch, head, x_batch, x_head, x_token, position, feature, there,
    rows, blocks, block_size, width, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the sums of the blocks of `x` that the weights (ROWS, BLOCKS) name."""
    place, exists = _in_blocks(
        x, batch, head, x_batch, x_head, x_token, position, feature, there, blocks, block_size,
        BLOCKS,
    )  # fmt: skip
    tile = tl.dot(weight, tl.load(place, mask=exists, other=0.0), input_precision="tf32x3")
    place, exists = _sorted_rows(
        sorted_x, of_head, position, feature, there, rows, block_size, width, ROWS
    )
    tl.store(place, tile.to(sorted_x.dtype.element_ty), mask=exists)


@triton.jit
def sort_tokens(
    k, v, sort, sorted_k, sorted_v,
    k_batch, k_head, k_token, v_batch, v_head, v_token, heads, rows, blocks, block_size, width,
    POSITIONS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Sums of blocks of keys and values, weighted by the rows of the sort matrix."""
    groups = tl.cdiv(block_size, POSITIONS)
    of_head = (tl.program_id(0) // groups).to(tl.int64)
    batch, head = of_head // heads, of_head % heads
    position, feature, there = _columns(
        tl.program_id(0) % groups, block_size, width, POSITIONS, WIDTH
    )
    weight = _weights(sort, of_head, rows, blocks, ROWS, BLOCKS)
    _sort(
        k, sorted_k, weight, of_head, batch, head, k_batch, k_head, k_token,
        position, feature, there, rows, blocks, block_size, width, ROWS, BLOCKS,
    )  # fmt: skip
    _sort(
        v, sorted_v, weight, of_head, batch, head, v_batch, v_head, v_token,
        position, feature, there, rows, blocks, block_size, width, ROWS, BLOCKS,
    )  # fmt: skip


@triton.jit
def _through_sort(
    x, grad_sorted, grad, of_head, batch, head, x_batch, x_head, x_token,
    g_batch, g_head, g_token, position, feature, there, weight, sum_of_sort,
    rows, blocks, block_size, width, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Adds what came through the sorted blocks to `grad`; returns the gradient of the weights."""
    place, exists = _sorted_rows(
        grad_sorted, of_head, position, feature, there, rows, block_size, width, ROWS
    )
    slope = tl.load(place, mask=exists, other=0.0)
    place, exists = _in_blocks(
        x, batch, head, x_batch, x_head, x_token, position, feature, there, blocks, block_size,
        BLOCKS,
    )  # fmt: skip
    tile = tl.load(place, mask=exists, other=0.0)
    sum_of_sort += tl.dot(slope, tl.trans(tile), input_precision="tf32x3")
    place, exists = _in_blocks(
        grad, batch, head, g_batch, g_head, g_token, position, feature, there, blocks, block_size,
        BLOCKS,
    )  # fmt: skip
    total = tl.load(place, mask=exists, other=0.0).to(tl.float32)
    total += tl.dot(tl.trans(weight), slope, input_precision="tf32x3")
    tl.store(place, total.to(grad.dtype.element_ty), mask=exists)
    return sum_of_sort


@triton.jit
def sort_gradient(
    k, v, sort, grad_sorted_k, grad_sorted_v, grad_k, grad_v, sums,
    k_batch, k_head, k_token, v_batch, v_head, v_token, g_batch, g_head, g_token,
    heads, rows, blocks, block_size, width, parts,
    GROUPS: tl.constexpr, POSITIONS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Complete grad_k and grad_v; sums (B, H, parts, R, n) of the gradient of the sort matrix."""
    of_head, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    batch, head = of_head // heads, of_head % heads
    weight = _weights(sort, of_head, rows, blocks, ROWS, BLOCKS)
    sum_of_sort = tl.zeros((ROWS, BLOCKS), tl.float32)
    for step in range(GROUPS):
        position, feature, there = _columns(
            part * GROUPS + step, block_size, width, POSITIONS, WIDTH
        )
        sum_of_sort = _through_sort(
            k, grad_sorted_k, grad_k, of_head, batch, head, k_batch, k_head, k_token,
            g_batch, g_head, g_token, position, feature, there, weight, sum_of_sort,
            rows, blocks, block_size, width, ROWS, BLOCKS,
        )  # fmt: skip
        sum_of_sort = _through_sort(
            v, grad_sorted_v, grad_v, of_head, batch, head, v_batch, v_head, v_token,
            g_batch, g_head, g_token, position, feature, there, weight, sum_of_sort,
            rows, blocks, block_size, width, ROWS, BLOCKS,
        )  # fmt: skip
    row, block = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCKS)[None, :]
    offset = ((of_head * parts + part) * rows + row) * blocks + block
    tl.store(sums + offset, sum_of_sort, mask=(row < rows) & (block < blocks))


@triton.jit
def _tokens(
    first, count, start, stride_token, width, TOKENS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Offsets of `start` and later of the `count` tokens from `first` on, and which exist."""
    token, feature = start + tl.arange(0, TOKENS)[:, None], tl.arange(0, WIDTH)[None, :]
    offset = (first + token).to(tl.int64) * stride_token + feature
    return offset, (token < count) & (feature < width)


@triton.jit
def _attend(
    queries, k, v, first, count, k_token, v_token, width, scale, best, total, out,
    KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Take `count` more keys into a running softmax, of logits to the base 2."""
    for start in range(0, count, KEYS):
        offset, exists = _tokens(first, count, start, k_token, width, KEYS, WIDTH)
        keys = tl.load(k + offset, mask=exists, other=0.0)
        offset, exists = _tokens(first, count, start, v_token, width, KEYS, WIDTH)
        values = tl.load(v + offset, mask=exists, other=0.0)
        logits = scale * tl.dot(queries, tl.trans(keys), input_precision="tf32x3")
        seen = (start + tl.arange(0, KEYS) < count)[None, :]
        logits = tl.where(seen, logits, float("-inf"))
        higher = tl.maximum(best, tl.max(logits, 1))
        share = tl.exp2(logits - higher[:, None])
        kept = tl.exp2(best - higher)
        total = total * kept + tl.sum(share, 1)
        out = out * kept[:, None]
        out += tl.dot(share.to(values.dtype), values, input_precision="tf32x3")
        best = higher
    return best, total, out


@triton.jit
def attend(
    q, k, v, sorted_k, sorted_v, y, log_sums,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    y_batch, y_head, y_token, heads, blocks, block_size, count, width, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Softmax attention of a block to its `count` sorted keys and to its own."""
    of_head, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    batch, head = of_head // heads, of_head % heads
    own = block * block_size
    offset, exists = _tokens(own, block_size, 0, q_token, width, QUERIES, WIDTH)
    q += batch * q_batch + head * q_head
    queries = tl.load(q + offset, mask=exists, other=0.0)
    best = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    out = tl.zeros((QUERIES, WIDTH), tl.float32)
    scale = scale * 1.4426950408889634  # of logits to the base 2
    best, total, out = _attend(
        queries, sorted_k, sorted_v, (of_head * blocks + block) * count, count, width, width,
        width, scale, best, total, out, KEYS, WIDTH,
    )  # fmt: skip
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    best, total, out = _attend(
        queries, k, v, own, block_size, k_token, v_token, width, scale, best, total, out, KEYS,
        WIDTH,
    )  # fmt: skip
    offset, exists = _tokens(own, block_size, 0, y_token, width, QUERIES, WIDTH)
    y += batch * y_batch + head * y_head
    tl.store(y + offset, (out / total[:, None]).to(y.dtype.element_ty), mask=exists)
    token = tl.arange(0, QUERIES)
    log_sums += of_head * blocks * block_size + own + token
    tl.store(log_sums, (best + tl.log2(total)) * 0.6931471805599453, mask=token < block_size)


@triton.jit
def _attend_gradient(
    queries, slope, log_sums, through, k, v, grad_k, grad_v, first, count,
    k_token, v_token, g_token, width, scale, grad, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of `count` keys and values; returns that of the queries, grown."""
    for start in range(0, count, KEYS):
        offset, exists = _tokens(first, count, start, k_token, width, KEYS, WIDTH)
        keys = tl.load(k + offset, mask=exists, other=0.0)
        offset, exists = _tokens(first, count, start, v_token, width, KEYS, WIDTH)
        values = tl.load(v + offset, mask=exists, other=0.0)
        logits = scale * tl.dot(queries, tl.trans(keys), input_precision="tf32x3")
        share = tl.exp2(1.4426950408889634 * (logits - log_sums[:, None]))
        grad_share = tl.dot(slope, tl.trans(values), input_precision="tf32x3")
        # Keys that do not exist are zeros, of gradients that are not written.
        grad_logits = (scale * share * (grad_share - through[:, None])).to(keys.dtype)
        grad += tl.dot(grad_logits, keys, input_precision="tf32x3")
        offset, exists = _tokens(first, count, start, g_token, width, KEYS, WIDTH)
        of_keys = tl.dot(tl.trans(grad_logits), queries, input_precision="tf32x3")
        tl.store(grad_k + offset, of_keys.to(keys.dtype), mask=exists)
        of_values = tl.dot(tl.trans(share.to(slope.dtype)), slope, input_precision="tf32x3")
        tl.store(grad_v + offset, of_values.to(keys.dtype), mask=exists)
    return grad


@triton.jit
def attend_gradient(
    q, k, v, sorted_k, sorted_v, y, log_sums, grad_y,
    grad_q, grad_k, grad_v, grad_sorted_k, grad_sorted_v,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    y_batch, y_head, y_token, s_batch, s_head, s_token, g_batch, g_head, g_token,
    heads, blocks, block_size, count, width, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients through `attend`, whose keys are seen by one block each: nothing is added up."""
    of_head, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    batch, head = of_head // heads, of_head % heads
    own = block * block_size
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
        queries, slope, log_sum, through, sorted_k, sorted_v, grad_sorted_k, grad_sorted_v,
        (of_head * blocks + block) * count, count, width, width, width, width, scale, grad, KEYS,
        WIDTH,
    )  # fmt: skip
    to_head = batch * g_batch + head * g_head
    grad = _attend_gradient(
        queries, slope, log_sum, through, k + batch * k_batch + head * k_head,
        v + batch * v_batch + head * v_head, grad_k + to_head, grad_v + to_head,
        own, block_size, k_token, v_token, g_token, width, scale, grad, KEYS, WIDTH,
    )  # fmt: skip
    offset, exists = _tokens(own, block_size, 0, g_token, width, QUERIES, WIDTH)
    tl.store(grad_q + to_head + offset, grad.to(queries.dtype), mask=exists)
