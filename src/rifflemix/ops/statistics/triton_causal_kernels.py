"""GPU kernels of causal token statistics: running sums within chunks, plus sums of whole chunks.

A program keeps one head of one chunk of tokens in registers, with two features per lane. So running
sums over the tokens stay within a thread. "before" (B, H, chunks + 1, width) contains the sums
before each chunk and after the last one. "after" contains the sums after each chunk, last chunk
first. The width is D, or D + 1 for the sums of Pi w^2 followed by the sum of Pi. See
`triton_kernels` for the memory layouts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rifflemix.ops.statistics.triton_kernels import (
    at_least,
    chunk_of_head,
    load_tokens,
    row_and_columns,
    store_tokens,
    token_exists,
)


@triton.constexpr_function
def _log2(power):
    return int(power).bit_length() - 1


@triton.jit
def add_up_chunks(
    sums, start, sums_up_to, end, num_chunks, width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, FROM_END: tl.constexpr,
):  # fmt: skip
    """Compute running sums over the chunks of a row.

    The sums start from `start` or 0. FROM_END starts with the last chunk.

    `start` and `end` are sums of a state, in float64.
    """
    row, column = row_and_columns(width, WIDTH)
    there = column < width
    carry = tl.zeros((WIDTH,), tl.float64)
    if start is not None:
        carry += tl.load(start + row * width + column, mask=there, other=0.0)
    sums_up_to += row * (num_chunks + 1) * width + column
    tl.store(sums_up_to, carry.to(tl.float32), mask=there)
    for first in range(0, num_chunks, ROWS):
        chunk = first + tl.arange(0, ROWS)
        inside = (chunk < num_chunks)[:, None] & there[None, :]
        source = num_chunks - 1 - chunk if FROM_END else chunk
        offset = (row * num_chunks + source)[:, None] * width + column[None, :]
        tile = tl.load(sums + offset, mask=inside, other=0.0)
        running = tl.cumsum(tile, 0) + carry.to(tl.float32)[None, :]
        tl.store(sums_up_to[None, :] + (chunk + 1)[:, None] * width, running, mask=inside)
        carry += tl.sum(tile, 0)
    tl.store(end + row * width + column, carry, mask=there)


@triton.jit
def _tile(mask, heads, length, num_chunks, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the indices of a program's tile."""
    batch, head, chunk = chunk_of_head(heads, num_chunks)
    token = chunk * ROWS + tl.arange(0, ROWS)
    exists = token_exists(mask, batch, token, length)
    # Without this hint, the compiler would give a lane eight features of fewer tokens.
    feature = tl.max_contiguous(tl.arange(0, WIDTH), 2 if WIDTH > 1 else 1)
    return batch, head, chunk, token, exists, feature


@triton.jit
def _energy(squares, before, row, chunk, num_chunks, features, feature):
    """Compute the sum of w^2 up to each token."""
    sums = before + (row * (num_chunks + 1) + chunk) * features
    start = tl.load(sums + feature, mask=feature < features, other=1.0)
    return tl.cumsum(squares, 0) + start[None, :]


@triton.jit
def _moment(squares, share, before, row, chunk, num_chunks, features, feature, count_offset):
    """Compute the moment and 1 / count of a group at each token."""
    sums = before + (row * (num_chunks + 1) + chunk) * (features + 1)
    start = tl.load(sums + feature, mask=feature < features, other=0.0)
    part = (1.0 / (tl.cumsum(share, 0) + tl.load(sums + features) + count_offset))[:, None]
    return (tl.cumsum(share[:, None] * squares, 0) + start[None, :]) * part, part


@triton.jit
def causal_scores(
    w, mask, before, scores, w_batch, w_head, w_token, heads, length, features, num_chunks, floor,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute scores (B, N, H): sum over features of w^2 / energy so far."""
    batch, head, chunk, token, exists, feature = _tile(mask, heads, length, num_chunks, ROWS, WIDTH)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    squares = tile * tile
    energy = _energy(squares, before, batch * heads + head, chunk, num_chunks, features, feature)
    score = tl.sum(squares / at_least(energy, floor), 1)
    tl.store(scores + (batch * length + token) * heads + head, score, mask=token < length)


@triton.jit
def causal_member_sums(
    w, mask, pi, sums, w_batch, w_head, w_token, heads, length, features, num_chunks,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute chunk sums (B, H, chunks, D + 1) of Pi w^2 and of Pi."""
    batch, head, chunk, token, exists, feature = _tile(mask, heads, length, num_chunks, ROWS, WIDTH)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    share = tl.load(pi + (batch * length + token) * heads + head, mask=exists, other=0.0)
    sums += ((batch * heads + head) * num_chunks + chunk) * (features + 1)
    total = tl.sum(share[:, None] * tile * tile, 0)
    tl.store(sums + feature, total, mask=feature < features)
    tl.store(sums + features, tl.sum(share, 0))


@triton.jit
def causal_gate(
    w, mask, pi, before, y, w_batch, w_head, w_token, y_batch, y_head, y_token,
    heads, length, features, num_chunks, count_offset,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute y = -(w Pi) / (1 + moment so far)."""
    batch, head, chunk, token, exists, feature = _tile(mask, heads, length, num_chunks, ROWS, WIDTH)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    share = tl.load(pi + (batch * length + token) * heads + head, mask=exists, other=0.0)
    row = batch * heads + head
    moment, _ = _moment(
        tile * tile, share, before, row, chunk, num_chunks, features, feature, count_offset
    )
    value = -(share[:, None] * tile) / (1.0 + moment)
    store_tokens(
        y, value, exists, batch, head, token, length, y_batch, y_head, y_token, features, feature
    )


@triton.jit
def _slopes(tile, slope, share, moment, part):
    """Compute gradients of the sums up to a token, through its output.

    The sums are of Pi w^2 and of Pi.

    The caller must sum the gradient of the sum of Pi over the features.
    """
    damp = 1.0 / (1.0 + moment)
    grad_energy = slope * tile * share[:, None] * damp * damp * part
    return grad_energy, -grad_energy * moment, damp


@triton.jit
def causal_gate_gradient_sums(
    w, grad, mask, pi, before, sums, w_batch, w_head, w_token, g_batch, g_head, g_token,
    heads, length, features, num_chunks, count_offset,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute chunk sums (B, H, chunks, D + 1) of the gradients from `_slopes`."""
    batch, head, chunk, token, exists, feature = _tile(mask, heads, length, num_chunks, ROWS, WIDTH)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    slope = load_tokens(
        grad, exists, batch, head, token, g_batch, g_head, g_token, features, feature
    )
    share = tl.load(pi + (batch * length + token) * heads + head, mask=exists, other=0.0)
    row = batch * heads + head
    moment, part = _moment(
        tile * tile, share, before, row, chunk, num_chunks, features, feature, count_offset
    )
    grad_energy, grad_count, _ = _slopes(tile, slope, share, moment, part)
    sums += (row * num_chunks + chunk) * (features + 1)
    tl.store(sums + feature, tl.sum(grad_energy, 0), mask=feature < features)
    tl.store(sums + features, tl.sum(tl.sum(grad_count, 0), 0))


@triton.jit
def _add_behind(sums, tile, size: tl.constexpr):
    """Add the total of each second block to the block before it.

    A block has `size` rows.
    """
    shape: tl.constexpr = (tile.shape[0] // (2 * size), 2, size, tile.shape[1])
    is_second = tl.reshape(tl.arange(0, 2), (1, 2, 1, 1)) == 1
    totals = tl.sum(tl.reshape(tile, shape), 2, keep_dims=True)
    behind = tl.sum(tl.where(is_second, totals, 0.0), 1, keep_dims=True)
    return tl.reshape(tl.reshape(sums, shape) + tl.where(is_second, 0.0, behind), tile.shape)


@triton.jit
def _from_here_on(tile):
    """Compute reverse running sums of a tile over the tokens.

    The reverse scan of Triton shuffles between threads, even if one thread has all tokens.
    """
    sums = tile
    for i in tl.static_range(_log2(tile.shape[0])):
        sums = _add_behind(sums, tile, 1 << i)
    return sums


@triton.jit
def _sums_after(after, row, chunk, num_chunks, features):
    """Return the address of the gradients of the sums after a chunk."""
    return after + (row * (num_chunks + 1) + num_chunks - 1 - chunk) * (features + 1)


@triton.jit
def _slope_of_part(grad_energy, later, features, feature):
    """Compute the gradient of a token's term in the sum of Pi w^2.

    It is the sum of the gradients through the outputs of this and all later tokens.
    """
    start = tl.load(later + feature, mask=feature < features, other=0.0)
    return _from_here_on(grad_energy) + start[None, :]


@triton.jit
def causal_membership_gradient(
    w, grad, mask, pi, before, after, grad_pi, w_batch, w_head, w_token, g_batch, g_head, g_token,
    heads, length, features, num_chunks, count_offset,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of Pi (B, N, H), through y and the sums."""
    batch, head, chunk, token, exists, feature = _tile(mask, heads, length, num_chunks, ROWS, WIDTH)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    slope = load_tokens(
        grad, exists, batch, head, token, g_batch, g_head, g_token, features, feature
    )
    offset = (batch * length + token) * heads + head
    share = tl.load(pi + offset, mask=exists, other=0.0)
    row = batch * heads + head
    squares = tile * tile
    moment, part = _moment(
        squares, share, before, row, chunk, num_chunks, features, feature, count_offset
    )
    grad_energy, grad_count, damp = _slopes(tile, slope, share, moment, part)
    later = _sums_after(after, row, chunk, num_chunks, features)
    value = squares * _slope_of_part(grad_energy, later, features, feature)
    value += _from_here_on(grad_count) - slope * tile * damp
    value = tl.sum(value, 1) + tl.load(later + features)
    tl.store(grad_pi + offset, value, mask=token < length)


@triton.jit
def _score_slopes(squares, grad_score, energy, floor):
    """Compute gradients of a token's square and energy, through its score.

    If a token is the only one with energy so far, its score is constant 1. The two gradients then
    cancel exactly, but they can be huge and their sum would be a rounding error. So both are zero.
    """
    scale = 1.0 / at_least(energy, floor)
    is_free = energy >= floor
    grad_square = tl.where(is_free & (energy == squares), 0.0, grad_score[:, None] * scale)
    return grad_square, tl.where(is_free, -grad_square * squares * scale, 0.0)


@triton.jit
def causal_energy_gradient_sums(
    w, mask, grad_scores, before, sums, w_batch, w_head, w_token,
    heads, length, features, num_chunks, floor,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute chunk sums (B, H, chunks, D) of the energy gradients.

    The energy gradients follow from the gradients of the scores.
    """
    batch, head, chunk, token, exists, feature = _tile(mask, heads, length, num_chunks, ROWS, WIDTH)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    squares = tile * tile
    row = batch * heads + head
    offset = (batch * length + token) * heads + head
    grad_score = tl.load(grad_scores + offset, mask=exists, other=0.0)
    energy = _energy(squares, before, row, chunk, num_chunks, features, feature)
    _, grad_energy = _score_slopes(squares, grad_score, energy, floor)
    sums += (row * num_chunks + chunk) * features
    tl.store(sums + feature, tl.sum(grad_energy, 0), mask=feature < features)


@triton.jit
def causal_token_gradient(
    w, grad, mask, pi, grad_scores, energy_before, energy_after, before, after, out,
    w_batch, w_head, w_token, g_batch, g_head, g_token, out_batch, out_head, out_token,
    heads, length, features, num_chunks, floor, count_offset,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of w.

    It has terms through y, and through w^2 in the score and both sums.
    """
    batch, head, chunk, token, exists, feature = _tile(mask, heads, length, num_chunks, ROWS, WIDTH)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    slope = load_tokens(
        grad, exists, batch, head, token, g_batch, g_head, g_token, features, feature
    )
    offset = (batch * length + token) * heads + head
    share = tl.load(pi + offset, mask=exists, other=0.0)
    grad_score = tl.load(grad_scores + offset, mask=exists, other=0.0)
    row = batch * heads + head
    squares = tile * tile
    moment, part = _moment(
        squares, share, before, row, chunk, num_chunks, features, feature, count_offset
    )
    grad_energy, _, damp = _slopes(tile, slope, share, moment, part)
    later = _sums_after(after, row, chunk, num_chunks, features)
    grad_energy = _slope_of_part(grad_energy, later, features, feature)
    energy = _energy(squares, energy_before, row, chunk, num_chunks, features, feature)
    later = energy_after + (row * (num_chunks + 1) + num_chunks - 1 - chunk) * features
    from_energy = tl.load(later + feature, mask=feature < features, other=0.0)[None, :]
    grad_squares, from_score = _score_slopes(squares, grad_score, energy, floor)
    from_energy += _from_here_on(from_score)
    grad_squares += share[:, None] * grad_energy + from_energy
    value = 2.0 * tile * grad_squares - slope * share[:, None] * damp
    store_tokens(
        out, value, exists, batch, head, token, length, out_batch, out_head, out_token,
        features, feature,
    )  # fmt: skip
