"""GPU kernels of token statistics, and helpers for the causal kernels.

Tokens w are (B, H, N, D) with stride 1 along D and any other strides. The other tensors are
contiguous and float32: numbers per token (B, N, H), sums over tokens (B, H, D), and sums over
chunks of tokens (B, H, chunks, D). A second kernel adds the chunk sums in order and in float64. So
results do not depend on timing, and rounding errors do not grow with the number of tokens.

Programs process memory in order, or in reverse order if REVERSED is True. A reversed pass starts
with the tokens that the previous pass left in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chunk_of_head(heads, num_chunks):
    """Return sample, head and chunk of a program.

    The head varies fastest, as in memory.
    """
    program = tl.program_id(0)
    rest = program // heads
    return (rest // num_chunks).to(tl.int64), (program % heads).to(tl.int64), rest % num_chunks


@triton.jit
def token_exists(mask, batch, token, length):
    """Return whether tokens exist and are not padding."""
    there = token < length
    if mask is not None:
        there = there & (tl.load(mask + batch * length + token, mask=there, other=1) == 0)
    return there


@triton.jit
def load_tokens(x, exists, batch, head, token, x_batch, x_head, x_token, features, feature):
    """Load (tokens, features) of one head in float32, with zeros for missing tokens."""
    x += batch * x_batch + head * x_head
    offset = token.to(tl.int64)[:, None] * x_token + feature[None, :]
    there = exists[:, None] & (feature < features)[None, :]
    return tl.load(x + offset, mask=there, other=0.0).to(tl.float32)


@triton.jit
def store_tokens(
    x, value, exists, batch, head, token, length, x_batch, x_head, x_token, features, feature
):  # fmt: skip
    """Store tokens of one head, with zeros at padded tokens.

    Padded tokens are zero even if `value` is NaN.
    """
    x += batch * x_batch + head * x_head
    x += token.to(tl.int64)[:, None] * x_token + feature[None, :]
    there = (feature < features)[None, :]
    tl.store(x, value.to(x.dtype.element_ty), mask=exists[:, None] & there)
    # A second store needs fewer registers than a selection between value and zero.
    padded = (token < length) & ~exists
    tl.store(x, tl.zeros_like(value).to(x.dtype.element_ty), mask=padded[:, None] & there)


@triton.jit
def sum_squares(
    w, mask, sums, w_batch, w_head, w_token, heads, length, features, num_chunks,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute sums (B, H, chunks, D) of w^2 over chunks of ROWS tokens."""
    batch, head, chunk = chunk_of_head(heads, num_chunks)
    feature = tl.arange(0, WIDTH)
    token = chunk * ROWS + tl.arange(0, ROWS)
    exists = token_exists(mask, batch, token, length)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    row = (batch * heads + head) * num_chunks + chunk
    tl.store(sums + row * features + feature, tl.sum(tile * tile, 0), mask=feature < features)


@triton.jit
def row_and_columns(width, WIDTH: tl.constexpr):
    """Return the row and the columns of sums (rows, chunks, width) for a program."""
    program = tl.program_id(0)
    blocks = tl.cdiv(width, WIDTH)
    return (program // blocks).to(tl.int64), program % blocks * WIDTH + tl.arange(0, WIDTH)


@triton.jit
def _total_of_chunks(sums, row, column, num_chunks, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Sum all chunks of a row.

    64 tiles at a time are summed in float32, then these sums in float64.
    """
    total = tl.zeros((WIDTH,), tl.float64)
    for start in range(0, num_chunks, 64 * ROWS):
        part = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in range(start, tl.minimum(start + 64 * ROWS, num_chunks), ROWS):
            chunk = first + tl.arange(0, ROWS)
            there = (chunk < num_chunks)[:, None] & (column < width)[None, :]
            offset = (row * num_chunks + chunk)[:, None] * width + column[None, :]
            part += tl.load(sums + offset, mask=there, other=0.0)
        total += tl.sum(part, 0)
    return total.to(tl.float32)


@triton.jit
def add_chunks(sums, total, num_chunks, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Compute total (rows, width) from sums (rows, chunks, width)."""
    row, column = row_and_columns(width, WIDTH)
    found = _total_of_chunks(sums, row, column, num_chunks, width, ROWS, WIDTH)
    tl.store(total + row * width + column, found, mask=column < width)


@triton.jit
def at_least(x, floor):
    """Return the larger of x and floor.

    NaN stays NaN. A plain maximum instruction would drop it.
    """
    return tl.maximum(x, floor, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _inverse_energy(energy, there, floor, offset):
    """Compute 1 / max(sum of w^2, floor), or 1 if tokens are not normalized."""
    if energy is None:
        scale = tl.where(there, 1.0, 0.0)
    else:
        scale = 1.0 / at_least(tl.load(energy + offset, mask=there, other=1.0), floor)
    return scale


@triton.jit
def _gate(member_sums, row, feature, features, count_offset):
    """Compute moment, number of tokens and 1 / (1 + moment) of a head.

    member_sums (B, H, D + 1) contains the sums of Pi w^2 and, in the last column, of Pi.
    """
    there = feature < features
    sums = member_sums + row * (features + 1)
    count = tl.load(sums + features) + count_offset
    moment = tl.load(sums + feature, mask=there, other=0.0) / count
    return moment, count, 1.0 / (1.0 + moment)


@triton.jit
def _all_heads(
    x, exists, batch, token, head, x_batch, x_head, x_token, heads, features, feature
):  # fmt: skip
    """Load (tokens, heads, features) in float32."""
    there = exists[:, None, None] & (head < heads)[None, :, None]
    there = there & (feature < features)[None, None, :]
    offset = token.to(tl.int64)[:, None, None] * x_token
    offset += head.to(tl.int64)[None, :, None] * x_head
    offset += feature[None, None, :]
    return tl.load(x + batch * x_batch + offset, mask=there, other=0.0).to(tl.float32)


@triton.jit
def membership(
    w, temperature, mask, energy, pi, member_sums,
    w_batch, w_head, w_token, heads, length, features, num_chunks, floor,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr,
    REVERSED: tl.constexpr,
):  # fmt: skip
    """Compute Pi (B, N, H), and chunk sums (B, H, chunks, D + 1) of Pi w^2 and Pi."""
    program = tl.program_id(0)
    if REVERSED:
        program = tl.num_programs(0) - 1 - program
    batch, chunk = (program // num_chunks).to(tl.int64), program % num_chunks
    head, feature = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    real = (head < heads)[:, None] & (feature < features)[None, :]
    of_head = (batch * heads + head)[:, None]
    scale = _inverse_energy(energy, real, floor, of_head * features + feature[None, :])
    factor = tl.load(temperature + head, mask=head < heads, other=0.0)
    energies = tl.zeros((HEADS, WIDTH), tl.float32)
    counts = tl.zeros((HEADS,), tl.float32)
    for step in range(STEPS):
        token = (chunk * STEPS + step) * TOKENS + tl.arange(0, TOKENS)
        exists = token_exists(mask, batch, token, length)
        tile = _all_heads(
            w, exists, batch, token, head, w_batch, w_head, w_token, heads, features, feature
        )
        squares = tile * tile
        logits = tl.sum(squares * scale[None, :, :], 2) * factor[None, :]
        logits = tl.where((head < heads)[None, :], logits, float("-inf"))
        share = tl.exp(logits - tl.max(logits, 1)[:, None])
        share = share / tl.sum(share, 1)[:, None]
        share = tl.where(exists[:, None], share, 0.0)
        energies += tl.sum(share[:, :, None] * squares, 0)
        counts += tl.sum(share, 0)
        offset = (batch * length + token)[:, None] * heads + head[None, :]
        tl.store(pi + offset, share, mask=(token < length)[:, None] & (head < heads)[None, :])
    row = ((batch * heads + head) * num_chunks + chunk) * (features + 1)
    tl.store(member_sums + row[:, None] + feature[None, :], energies, mask=real)
    tl.store(member_sums + row + features, counts, mask=head < heads)


@triton.jit
def gate(
    w, pi, member_sums, y,
    w_batch, w_head, w_token, y_batch, y_head, y_token,
    heads, length, features, num_chunks, count_offset, mask,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute y = -(w Pi) / (1 + moment)."""
    batch, head, chunk = chunk_of_head(heads, num_chunks)
    feature = tl.arange(0, WIDTH)
    token = chunk * ROWS + tl.arange(0, ROWS)
    exists = token_exists(mask, batch, token, length)
    _, _, damp = _gate(member_sums, batch * heads + head, feature, features, count_offset)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    share = tl.load(pi + (batch * length + token) * heads + head, mask=exists, other=0.0)
    value = -(share[:, None] * tile) * damp[None, :]
    store_tokens(
        y, value, exists, batch, head, token, length, y_batch, y_head, y_token, features, feature
    )


@triton.jit
def gate_gradient_sums(
    w, grad, pi, member_sums, through_tokens, sums,
    w_batch, w_head, w_token, g_batch, g_head, g_token,
    heads, length, features, num_chunks, count_offset, mask,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute through_tokens (B, N, H) and chunk sums of Pi w grad.

    through_tokens is the sum over the features of grad w / (1 + moment).
    """
    batch, head, chunk = chunk_of_head(heads, num_chunks)
    feature = tl.arange(0, WIDTH)
    token = chunk * ROWS + tl.arange(0, ROWS)
    exists = token_exists(mask, batch, token, length)
    _, _, damp = _gate(member_sums, batch * heads + head, feature, features, count_offset)
    product = load_tokens(
        w, exists, batch, head, token, w_batch, w_head, w_token, features, feature
    ) * load_tokens(grad, exists, batch, head, token, g_batch, g_head, g_token, features, feature)
    offset = (batch * length + token) * heads + head
    share = tl.load(pi + offset, mask=exists, other=0.0)
    through = tl.sum(product * damp[None, :], 1)
    tl.store(through_tokens + offset, through, mask=token < length)
    row = (batch * heads + head) * num_chunks + chunk
    total = tl.sum(share[:, None] * product, 0)
    tl.store(sums + row * features + feature, total, mask=feature < features)


@triton.jit
def moment_gradient(
    sums, member_sums, grad_energy, grad_count, features, num_chunks, count_offset,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the sums of Pi w^2 and Pi.

    They are (B, H, D) and (B, H).

    The input is the chunk sums of `gate_gradient_sums`.
    """
    row = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, WIDTH)
    through = _total_of_chunks(sums, row, feature, num_chunks, features, ROWS, WIDTH)
    moment, count, damp = _gate(member_sums, row, feature, features, count_offset)
    slope = through * damp * damp / count
    tl.store(grad_energy + row * features + feature, slope, mask=feature < features)
    tl.store(grad_count + row, -tl.sum(slope * moment, 0))


@triton.jit
def energy_gradient(
    sums, energy, score_sums, grad_temperature, features, num_chunks, floor,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the chunk sums of `membership_gradient` and compute grad_temperature (B, H)."""
    row = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, WIDTH)
    there = feature < features
    total = _total_of_chunks(sums, row, feature, num_chunks, features, ROWS, WIDTH)
    scale = _inverse_energy(energy, there, floor, row * features + feature)
    tl.store(score_sums + row * features + feature, total, mask=there)
    tl.store(grad_temperature + row, tl.sum(total * scale, 0))


@triton.jit
def membership_gradient(
    w, mask, pi, grad_energy, grad_count, through_tokens, grad_pi, grad_logits, score_sums,
    w_batch, w_head, w_token, heads, length, features, num_chunks,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr,
    REVERSED: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the softmax logits (B, N, H).

    The kernel also writes the chunk sums of this gradient times w^2.
    """
    program = tl.program_id(0)
    if REVERSED:
        program = tl.num_programs(0) - 1 - program
    batch, chunk = (program // num_chunks).to(tl.int64), program % num_chunks
    head, feature = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    real = (head < heads)[:, None] & (feature < features)[None, :]
    of_head = batch * heads + head
    energy_slope = tl.load(
        grad_energy + of_head[:, None] * features + feature[None, :], mask=real, other=0.0
    )
    count_slope = tl.load(grad_count + of_head, mask=head < heads, other=0.0)
    sums = tl.zeros((HEADS, WIDTH), tl.float32)
    for step in range(STEPS):
        token = (chunk * STEPS + step) * TOKENS + tl.arange(0, TOKENS)
        exists = token_exists(mask, batch, token, length)
        tile = _all_heads(
            w, exists, batch, token, head, w_batch, w_head, w_token, heads, features, feature
        )
        squares = tile * tile
        offset = (batch * length + token)[:, None] * heads + head[None, :]
        there = exists[:, None] & (head < heads)[None, :]
        share = tl.load(pi + offset, mask=there, other=0.0)
        slope = tl.sum(squares * energy_slope[None, :, :], 2) + count_slope[None, :]
        slope -= tl.load(through_tokens + offset, mask=there, other=0.0)
        if grad_pi is not None:
            slope += tl.load(grad_pi + offset, mask=there, other=0.0)
        slope = share * (slope - tl.sum(share * slope, 1)[:, None])
        sums += tl.sum(slope[:, :, None] * squares, 0)
        tl.store(
            grad_logits + offset, slope, mask=(token < length)[:, None] & (head < heads)[None, :]
        )
    row = (of_head * num_chunks + chunk) * features
    tl.store(score_sums + row[:, None] + feature[None, :], sums, mask=real)


@triton.jit
def token_gradient(
    w, grad, temperature, mask, energy, pi, member_sums, grad_energy, grad_logits, score_sums, out,
    w_batch, w_head, w_token, g_batch, g_head, g_token, out_batch, out_head, out_token,
    heads, length, features, num_chunks, floor, count_offset,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of w.

    It has terms through y, and through w^2 in score, energy and moment.
    """
    batch, head, chunk = chunk_of_head(heads, num_chunks)
    feature = tl.arange(0, WIDTH)
    token = chunk * ROWS + tl.arange(0, ROWS)
    exists = token_exists(mask, batch, token, length)
    row = batch * heads + head
    _, _, damp = _gate(member_sums, row, feature, features, count_offset)
    factor = tl.load(temperature + head)
    there = feature < features
    energy_slope = tl.load(grad_energy + row * features + feature, mask=there, other=0.0)
    scale = _inverse_energy(energy, there, floor, row * features + feature)
    constant = tl.zeros((WIDTH,), tl.float32)
    if energy is not None:
        total = tl.load(score_sums + row * features + feature, mask=there, other=0.0)
        above = tl.load(energy + row * features + feature, mask=there, other=0.0) >= floor
        constant = tl.where(above, -factor * total * scale * scale, 0.0)
    tile = load_tokens(w, exists, batch, head, token, w_batch, w_head, w_token, features, feature)
    slope = load_tokens(
        grad, exists, batch, head, token, g_batch, g_head, g_token, features, feature
    )
    offset = (batch * length + token) * heads + head
    share = tl.load(pi + offset, mask=exists, other=0.0)[:, None]
    logit = tl.load(grad_logits + offset, mask=exists, other=0.0)[:, None] * factor
    grad_squares = share * energy_slope[None, :] + logit * scale[None, :] + constant[None, :]
    value = 2.0 * tile * grad_squares - slope * share * damp[None, :]
    store_tokens(
        out, value, exists, batch, head, token, length, out_batch, out_head, out_token,
        features, feature,
    )  # fmt: skip
