"""Sinkhorn balancing on a GPU: all steps of a matrix in one program, where torch launches 4 a turn.

A gradient of a gradient is left to the eager formulas.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.gradients import second_order_gradients
from rifflemix.ops.operands import check_operand, on_one_device
from rifflemix.ops.operator import operator
from rifflemix.ops.sinkhorn import eager
from rifflemix.ops.sinkhorn import triton_kernels as kernels
from rifflemix.ops.sinkhorn.triton_limits import check_limits
from rifflemix.ops.triton_support import launch

# Numbers of a matrix for each thread: the backward holds three such matrices.
_NUMBERS = 32
_SMALLEST = 16


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    causal: bool,
    final_row_norm: bool,
    block_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sinkhorn`; not causal, so that no row step comes last."""
    padding = block_padding_mask
    if padding is not None:
        padding = padding.reshape(-1, log_scores.shape[-1])
    sort: Tensor = _forward(log_scores, padding, num_iterations)[0]
    return sort


@operator(
    "rifflemix::triton_balance",
    schema="(Tensor log_scores, Tensor? padding, int num_iterations) -> (Tensor, Tensor)",
)
def _forward(
    log_scores: Tensor, padding: Tensor | None, num_iterations: int
) -> tuple[Tensor, Tensor]:
    """The sort matrix; what each of 2 T steps subtracted, (..., 2 T, n) in float32.

    Args:
        log_scores: (..., n, n).
        padding: (samples, n), with as many matrices for each sample; True = padding.
        num_iterations: T.
    """
    of_sample = _check(log_scores, padding, num_iterations)
    log_scores = log_scores.contiguous()
    sort, norms = _empty_outputs(log_scores, padding, num_iterations)
    size = log_scores.shape[-1]
    launch(
        kernels.balance, log_scores.numel() // size**2, log_scores,
        log_scores, _bytes(padding), sort, norms, of_sample, size, num_iterations,
        eager.LOG_ZERO, **_tile(size),
    )  # fmt: skip
    return sort, norms


@on_one_device
def _empty_outputs(
    log_scores: Tensor, padding: Tensor | None, num_iterations: int
) -> tuple[Tensor, Tensor]:
    norms = log_scores.new_empty(_norms_shape(log_scores, num_iterations), dtype=torch.float32)
    return log_scores.new_empty(log_scores.shape), norms


def _norms_shape(log_scores: Tensor, num_iterations: int) -> tuple[int, ...]:
    return (*log_scores.shape[:-2], 2 * num_iterations, log_scores.shape[-1])


_forward.register_fake(_empty_outputs)


@operator(
    "rifflemix::triton_balance_backward",
    schema="(Tensor log_scores, Tensor? padding, int num_iterations, Tensor norms, "
    "Tensor grad_sort) -> Tensor",
)
def _backward(
    log_scores: Tensor,
    padding: Tensor | None,
    num_iterations: int,
    norms: Tensor,
    grad_sort: Tensor,
) -> Tensor:
    """The gradient of the scores."""
    of_sample = _check(log_scores, padding, num_iterations)
    size = log_scores.shape[-1]
    shape = _norms_shape(log_scores, num_iterations)
    check_operand("norms", norms, shape, torch.float32, log_scores.device)
    check_operand("grad_sort", grad_sort, log_scores.shape, log_scores.dtype, log_scores.device)
    log_scores, grad_sort = log_scores.contiguous(), grad_sort.contiguous()
    grad_scores = torch.empty_like(log_scores)
    launch(
        kernels.balance_backward, log_scores.numel() // size**2, log_scores,
        log_scores, _bytes(padding), norms.contiguous(), grad_sort, grad_scores, of_sample, size,
        num_iterations, eager.LOG_ZERO, **_tile(size),
    )  # fmt: skip
    return grad_scores


@_backward.register_fake
@on_one_device
def _(log_scores: Tensor, *_: Any) -> Tensor:
    return log_scores.new_empty(log_scores.shape)


def _check(log_scores: Tensor, padding: Tensor | None, num_iterations: int) -> int:
    """Refuse what the kernels cannot read; the matrices of a sample."""
    check_limits(log_scores, num_iterations)
    size = log_scores.shape[-1]
    samples = log_scores.shape[0] if log_scores.dim() > 2 else 1
    if padding is not None:
        check_operand("padding", padding, (samples, size), torch.bool, log_scores.device)
    return max(1, log_scores.numel() // size**2 // max(1, samples))


def _bytes(padding: Tensor | None) -> Tensor | None:
    return None if padding is None else padding.contiguous().view(torch.uint8)


def _tile(size: int) -> dict[str, int]:
    """A square that holds the matrix, and the warps that hold the square."""
    side = max(_SMALLEST, 1 << (int(size) - 1).bit_length())
    return {"SIZE": side, "num_warps": min(16, max(1, side * side // (32 * _NUMBERS)))}


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    log_scores, padding, ctx.num_iterations = inputs
    ctx.save_for_backward(log_scores, padding, output[1])


def _differentiate(ctx: Any, grad_sort: Tensor, _: Tensor) -> tuple[Tensor | None, None, None]:
    log_scores, padding, norms = ctx.saved_tensors
    if torch.is_grad_enabled():

        def formula(scores: Tensor) -> tuple[Tensor]:
            return (eager.sinkhorn(scores, ctx.num_iterations, False, True, padding),)

        (gradient,) = second_order_gradients(formula, (log_scores,), (grad_sort,))
        return gradient, None, None
    return _backward(log_scores, padding, ctx.num_iterations, norms, grad_sort), None, None


_forward.register_autograd(_differentiate, setup_context=_save)
