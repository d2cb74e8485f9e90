"""GPU kernels of Sinkhorn balancing: a program holds one matrix through all steps.

Matrices are (matrices, n, n), contiguous; `padding` is (samples, n) or None. What each of the 2 T
steps subtracts, one number for each row or column, is kept in `norms` (matrices, 2 T, n): from the
last matrix, the backward adds it again step by step.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(size, SIZE: tl.constexpr):
    """Offsets of one matrix, and which of them are within it."""
    line = tl.arange(0, SIZE)
    inside = line < size
    return line[:, None] * size + line[None, :], inside[:, None] & inside[None, :]


@triton.jit
def _load(scores, padding, matrix, of_sample, size, log_zero, SIZE: tl.constexpr):
    """A matrix in float32, and where it is live; the logarithm of zero where it is not."""
    offset, inside = _place(size, SIZE)
    value = tl.load(scores + matrix * size * size + offset, mask=inside, other=float("-inf"))
    value = value.to(tl.float32)
    live = value != float("-inf")
    if padding is not None:
        line = tl.arange(0, SIZE)
        blocks = padding + matrix // of_sample * size + line
        valid = tl.load(blocks, mask=line < size, other=1) == 0
        live = live & valid[:, None] & valid[None, :]
    return tl.where(live, value, log_zero), live


@triton.jit
def _logsumexp(value, AXIS: tl.constexpr):
    """Along rows (1) or columns (0); finite where nothing is live, since `value` is."""
    largest = tl.max(value, AXIS, keep_dims=True)
    total = tl.sum(tl.exp(value - largest), AXIS, keep_dims=True)
    return largest + tl.log(total)


@triton.jit
def _put(norms, step, norm, size, SIZE: tl.constexpr):
    line = tl.arange(0, SIZE)
    tl.store(norms + step * size + line, tl.reshape(norm, (SIZE,)), mask=line < size)


@triton.jit
def _take(norms, step, size, SIZE: tl.constexpr):
    line = tl.arange(0, SIZE)
    return tl.load(norms + step * size + line, mask=line < size, other=0.0)


@triton.jit
def balance(
    scores, padding, sort, norms, of_sample, size, iterations, log_zero, SIZE: tl.constexpr
):  # fmt: skip
    """The sort matrix after so many row and column steps, and what they subtracted."""
    matrix = tl.program_id(0).to(tl.int64)
    value, live = _load(scores, padding, matrix, of_sample, size, log_zero, SIZE)
    norms += matrix * 2 * iterations * size
    for i in range(iterations):
        norm = _logsumexp(value, 1)
        _put(norms, 2 * i, norm, size, SIZE)
        value = tl.where(live, value - norm, log_zero)
        norm = _logsumexp(value, 0)
        _put(norms, 2 * i + 1, norm, size, SIZE)
        value = tl.where(live, value - norm, log_zero)
    offset, inside = _place(size, SIZE)
    tl.store(
        sort + matrix * size * size + offset, tl.exp(value).to(sort.dtype.element_ty), mask=inside
    )


@triton.jit
def _shares(value, live, log_zero):
    """The exponential, zero where nothing is live, wherever the steps have moved such a value."""
    return tl.exp(tl.where(live, value, log_zero))


@triton.jit
def _through_step(grad, shares, AXIS: tl.constexpr):
    """The gradient before a step, from that after it and what the step made."""
    return grad - shares * tl.sum(grad, AXIS, keep_dims=True)


@triton.jit
def balance_backward(
    scores, padding, norms, grad_sort, grad_scores, of_sample, size, iterations, log_zero,
    SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores."""
    matrix = tl.program_id(0).to(tl.int64)
    value, live = _load(scores, padding, matrix, of_sample, size, log_zero, SIZE)
    norms += matrix * 2 * iterations * size
    for i in range(iterations):
        value = value - _take(norms, 2 * i, size, SIZE)[:, None]
        value = value - _take(norms, 2 * i + 1, size, SIZE)[None, :]
    offset, inside = _place(size, SIZE)
    offset += matrix * size * size
    grad = tl.load(grad_sort + offset, mask=inside, other=0.0).to(tl.float32)
    grad *= _shares(value, live, log_zero)
    for i in range(iterations):
        step = 2 * (iterations - 1 - i)
        grad = _through_step(grad, _shares(value, live, log_zero), 0)
        value = value + _take(norms, step + 1, size, SIZE)[None, :]
        grad = _through_step(grad, _shares(value, live, log_zero), 1)
        value = value + _take(norms, step, size, SIZE)[:, None]
    tl.store(grad_scores + offset, grad.to(grad_scores.dtype.element_ty), mask=inside)
