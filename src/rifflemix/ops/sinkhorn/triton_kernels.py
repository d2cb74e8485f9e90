"""GPU kernels of Sinkhorn balancing: a program keeps one matrix in registers for all steps.

Matrices are (matrices, n, n), contiguous; `padding` is (samples, n) or None. The forward pass
stores the norms that the steps subtract. The backward pass starts from the last matrix and adds
them again, step by step.

- Not CAUSAL: the 2 T steps along rows and columns subtract one number per line, `norms`
  (matrices, 2 T, n).
- CAUSAL: a column step normalizes over the rows so far, with one number per entry, `running`
  (matrices, T, n, n). `norms` (matrices, T + 1, n) then contains only the row steps; the last one
  is the step of LAST_ROWS.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(size, FROM_END: tl.constexpr, SIZE: tl.constexpr):
    """Return the row numbers of a tile.

    Rows outside the matrix have numbers >= `size` or below 0.
    """
    row = tl.arange(0, SIZE)
    if FROM_END:
        row = size - 1 - row
    return row


@triton.jit
def _place(size, FROM_END: tl.constexpr, SIZE: tl.constexpr):
    """Return the offsets of a matrix, and a mask of valid offsets."""
    row, column = _rows(size, FROM_END, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    return row * size + column, (row >= 0) & (row < size) & (column < size)


@triton.jit
def _load(
    scores, padding, matrix, of_sample, size, log_zero,
    CAUSAL: tl.constexpr, FROM_END: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Load a float32 matrix and its mask of live entries.

    All other entries are `log_zero`.
    """
    offset, inside = _place(size, FROM_END, SIZE)
    value = tl.load(scores + matrix * size * size + offset, mask=inside, other=float("-inf"))
    value = value.to(tl.float32)
    live = value != float("-inf")
    row, column = _rows(size, FROM_END, SIZE), tl.arange(0, SIZE)
    if CAUSAL:
        live = live & (row[:, None] > column[None, :])
    if padding is not None:
        padding += matrix // of_sample * size
        of_row = tl.load(padding + row, mask=(row >= 0) & (row < size), other=1) == 0
        of_column = tl.load(padding + column, mask=column < size, other=1) == 0
        live = live & of_row[:, None] & of_column[None, :]
    return tl.where(live, value, log_zero), live


@triton.jit
def _put(norms, step, norm, size, SIZE: tl.constexpr):
    line = tl.arange(0, SIZE)
    tl.store(norms + step * size + line, tl.reshape(norm, (SIZE,)), mask=line < size)


@triton.jit
def _take(norms, step, size, FROM_END: tl.constexpr, SIZE: tl.constexpr):
    line = _rows(size, FROM_END, SIZE)
    return tl.load(norms + step * size + line, mask=(line >= 0) & (line < size), other=0.0)


@triton.jit
def _logsumexp(value, AXIS: tl.constexpr):
    """Compute logsumexp along rows (1) or columns (0).

    The result is always finite, since `value` is finite.
    """
    largest = tl.max(value, AXIS, keep_dims=True)
    total = tl.sum(tl.exp(value - largest), AXIS, keep_dims=True)
    return largest + tl.log(total)


@triton.jit
def _add_exponentials(largest, total, other_largest, other_total):
    both = tl.maximum(largest, other_largest)
    first = total * tl.exp(largest - both)
    return both, first + other_total * tl.exp(other_largest - both)


@triton.jit
def _running_logsumexp(value):
    """Compute logsumexp along columns, over the rows so far."""
    ones = tl.zeros_like(value) + 1.0
    largest, total = tl.associative_scan((value, ones), 0, _add_exponentials)
    return largest + tl.log(total)


@triton.jit
def _normalised(value, norm, live, log_zero):
    return tl.where(live, value - norm, log_zero)


@triton.jit
def balance(
    scores, padding, sort, norms, running, of_sample, size, iterations, log_zero,
    CAUSAL: tl.constexpr, LAST_ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Compute the sort matrix, and store the norms of all steps."""
    matrix = tl.program_id(0).to(tl.int64)
    value, live = _load(scores, padding, matrix, of_sample, size, log_zero, CAUSAL, False, SIZE)
    offset, inside = _place(size, False, SIZE)
    norms += matrix * size * (iterations + 1 if CAUSAL else 2 * iterations)
    for i in range(iterations):
        norm = _logsumexp(value, 1)
        _put(norms, i if CAUSAL else 2 * i, norm, size, SIZE)
        value = _normalised(value, norm, live, log_zero)
        if CAUSAL:
            norm = _running_logsumexp(value)
            step = matrix * iterations + i
            tl.store(running + step * size * size + offset, norm, mask=inside)
        else:
            norm = _logsumexp(value, 0)
            _put(norms, 2 * i + 1, norm, size, SIZE)
        value = _normalised(value, norm, live, log_zero)
    if LAST_ROWS:
        norm = _logsumexp(value, 1)
        _put(norms, iterations, norm, size, SIZE)
        value = _normalised(value, norm, live, log_zero)
    sort += matrix * size * size + offset
    tl.store(sort, tl.exp(value).to(sort.dtype.element_ty), mask=inside)


@triton.jit
def _shares(value, live, log_zero):
    """Compute exp(value) for live entries, and 0 for all others."""
    return tl.exp(tl.where(live, value, log_zero))


@triton.jit
def _through_step(grad, shares, AXIS: tl.constexpr):
    """Compute the gradient before a step from the gradient after it.

    `shares` is the exponential of the step's result.
    """
    return grad - shares * tl.sum(grad, AXIS, keep_dims=True)


@triton.jit
def _through_both(factor, total, other_factor, other_total):
    return factor * other_factor, other_total + other_factor * total


@triton.jit
def _sums_of_later(grad, norm, later):
    """Sum grad[u] exp(norm[v] - norm[u]) over the rows u >= v.

    `later` is norm[v + 1].
    """
    _, total = tl.associative_scan((tl.exp(norm - later), grad), 0, _through_both)
    return total


@triton.jit
def balance_backward(
    scores, padding, norms, running, grad_sort, grad_scores, of_sample, size, iterations, log_zero,
    CAUSAL: tl.constexpr, LAST_ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the scores.

    CAUSAL matrices are processed from the last row to the first.
    """
    matrix = tl.program_id(0).to(tl.int64)
    value, live = _load(scores, padding, matrix, of_sample, size, log_zero, CAUSAL, CAUSAL, SIZE)
    offset, inside = _place(size, CAUSAL, SIZE)
    norms += matrix * size * (iterations + 1 if CAUSAL else 2 * iterations)
    if CAUSAL:
        running += matrix * iterations * size * size
        has_later = inside & (_rows(size, CAUSAL, SIZE) < size - 1)[:, None]
    for i in range(iterations):
        value = value - _take(norms, i if CAUSAL else 2 * i, size, CAUSAL, SIZE)[:, None]
        if CAUSAL:
            value = value - tl.load(running + i * size * size + offset, mask=inside, other=0.0)
        else:
            value = value - _take(norms, 2 * i + 1, size, False, SIZE)[None, :]
    if LAST_ROWS:
        value = value - _take(norms, iterations, size, CAUSAL, SIZE)[:, None]
    offset_here = matrix * size * size + offset
    grad = tl.load(grad_sort + offset_here, mask=inside, other=0.0).to(tl.float32)
    grad *= _shares(value, live, log_zero)
    if LAST_ROWS:
        grad = _through_step(grad, _shares(value, live, log_zero), 1)
        value = value + _take(norms, iterations, size, CAUSAL, SIZE)[:, None]
    for i in range(iterations):
        step = iterations - 1 - i
        if CAUSAL:
            norm = running + step * size * size + offset
            later = tl.load(norm + size, mask=has_later, other=0.0)
            norm = tl.load(norm, mask=inside, other=0.0)
            shares = _shares(value, live, log_zero)
            grad = grad - shares * _sums_of_later(grad, norm, tl.where(has_later, later, norm))
            value = value + norm
        else:
            grad = _through_step(grad, _shares(value, live, log_zero), 0)
            value = value + _take(norms, 2 * step + 1, size, False, SIZE)[None, :]
        grad = _through_step(grad, _shares(value, live, log_zero), 1)
        value = value + _take(norms, step if CAUSAL else 2 * step, size, CAUSAL, SIZE)[:, None]
    tl.store(grad_scores + offset_here, grad.to(grad_scores.dtype.element_ty), mask=inside)
