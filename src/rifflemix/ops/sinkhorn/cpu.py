"""Sinkhorn balancing in a compiled kernel: runs all steps while the matrix is in the CPU cache.

The backward pass recomputes the steps, so they are not stored. The kernel is in
ops/native/balance.cpp. The eager formulas compute second-order gradients.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.dropout.cpu import KERNELS, supports
from rifflemix.ops.gradients import second_order_gradients
from rifflemix.ops.native import checked, require_library
from rifflemix.ops.operands import check_operand, on_one_device, refuse_values
from rifflemix.ops.operator import operator
from rifflemix.ops.sinkhorn import eager

_TYPE_NAMES = {torch.float32: "float32", torch.float64: "float64"}


def supports_balancing(log_scores: Tensor, num_iterations: int) -> bool:
    """Check whether the kernel supports the arguments."""
    return num_iterations > 0 and 0 not in log_scores.shape[-2:] and supports(log_scores)


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    causal: bool,
    final_row_norm: bool,
    block_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sinkhorn`."""
    live = eager.live_entries(log_scores, causal, block_padding_mask)
    wide = log_scores.to(eager.statistics_dtype(log_scores.dtype))
    sort: Tensor = _forward(wide, live, num_iterations, causal, causal and final_row_norm)
    return sort.to(log_scores.dtype)


@operator("rifflemix::balance", device_types="cpu")
def _forward(
    log_scores: Tensor, live: Tensor, num_iterations: int, causal: bool, last_rows: bool
) -> Tensor:
    """Compute the sort matrix; `live` marks entries that may be positive."""
    _check(log_scores, live, num_iterations, causal, last_rows)
    return _call(log_scores, live, num_iterations, causal, last_rows, None)


@on_one_device
def _like_scores(log_scores: Tensor, *_: Any) -> Tensor:
    return log_scores.new_empty(log_scores.shape)


_forward.register_fake(_like_scores)


@operator("rifflemix::balance_backward", device_types="cpu")
def _backward(
    log_scores: Tensor,
    live: Tensor,
    num_iterations: int,
    causal: bool,
    last_rows: bool,
    grad_sort: Tensor,
) -> Tensor:
    """Compute the gradient of the scores."""
    _check(log_scores, live, num_iterations, causal, last_rows)
    check_operand("grad_sort", grad_sort, log_scores.shape, log_scores.dtype, log_scores.device)
    grad_sort = grad_sort.contiguous()
    return _call(log_scores, live, num_iterations, causal, last_rows, grad_sort)


_backward.register_fake(_like_scores)


def _check(
    log_scores: Tensor, live: Tensor, num_iterations: int, causal: bool, last_rows: bool
) -> None:
    size = log_scores.shape[-1] if log_scores.dim() > 1 else 0
    if log_scores.dtype not in _TYPE_NAMES or not size or log_scores.shape[-2] != size:
        refuse_values("log_scores", log_scores, log_scores.dim(), "(..., n, n)", _TYPE_NAMES)
    check_operand("live", live, log_scores.shape, torch.bool, log_scores.device)
    if num_iterations < 1:
        raise bad_argument("num_iterations", "at least 1", num_iterations)
    if last_rows and not causal:
        raise bad_argument("last_rows", "False unless causal", True)


def _call(
    log_scores: Tensor,
    live: Tensor,
    num_iterations: int,
    causal: bool,
    last_rows: bool,
    grad_sort: Tensor | None,
) -> Tensor:
    log_scores, live = log_scores.contiguous(), live.contiguous()
    out = torch.empty_like(log_scores)
    size = log_scores.shape[-1]
    flags = (int(causal), int(last_rows))
    sizes = (log_scores.numel() // size**2, size, num_iterations, *flags, torch.get_num_threads())
    function = getattr(
        require_library(KERNELS), f"rifflemix_balance_{_TYPE_NAMES[log_scores.dtype]}"
    )
    result = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        ctypes.c_void_p(log_scores.data_ptr()),
        ctypes.c_void_p(live.data_ptr()),
        ctypes.c_void_p(None if grad_sort is None else grad_sort.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
    )
    checked(result)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    log_scores, live, *ctx.steps = inputs
    ctx.save_for_backward(log_scores, live)


def _differentiate(ctx: Any, grad_sort: Tensor) -> tuple[Tensor | None, ...]:
    log_scores, live = ctx.saved_tensors
    gradient: Tensor | None
    if torch.is_grad_enabled():
        (gradient,) = second_order_gradients(
            lambda scores: (eager.balance(scores, live, *ctx.steps),), (log_scores,), (grad_sort,)
        )
    else:
        gradient = _backward(log_scores, live, *ctx.steps, grad_sort)
    return gradient, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
