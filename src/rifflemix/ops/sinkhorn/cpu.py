"""Sinkhorn balancing by a compiled kernel: all steps of a matrix while it is in a cache.

The gradient goes through the steps again and keeps none of them. The kernel is in
ops/native/balance.cpp. A gradient of a gradient is left to the eager formulas.
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


def supports_balancing(log_scores: Tensor, num_iterations: int, causal: bool) -> bool:
    """Whether the kernel can run this; columns that grow from row to row are left to torch."""
    return (
        not causal
        and num_iterations > 0
        and 0 not in log_scores.shape[-2:]
        and supports(log_scores)
    )


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    causal: bool,
    final_row_norm: bool,
    block_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sinkhorn`; not causal, so that no row step comes last."""
    live = eager.live_entries(log_scores, False, block_padding_mask)
    wide = log_scores.to(eager.statistics_dtype(log_scores.dtype))
    sort: Tensor = _forward(wide, live, num_iterations)
    return sort.to(log_scores.dtype)


@operator("rifflemix::balance", device_types="cpu")
def _forward(log_scores: Tensor, live: Tensor, num_iterations: int) -> Tensor:
    """The sort matrix; `live` is True where an entry may be above zero."""
    _check(log_scores, live, num_iterations)
    return _call(log_scores, live, num_iterations, None)


@_forward.register_fake
@on_one_device
def _(log_scores: Tensor, live: Tensor, num_iterations: int) -> Tensor:
    return log_scores.new_empty(log_scores.shape)


@operator("rifflemix::balance_backward", device_types="cpu")
def _backward(log_scores: Tensor, live: Tensor, num_iterations: int, grad_sort: Tensor) -> Tensor:
    """The gradient of the scores."""
    _check(log_scores, live, num_iterations)
    check_operand("grad_sort", grad_sort, log_scores.shape, log_scores.dtype, log_scores.device)
    return _call(log_scores, live, num_iterations, grad_sort.contiguous())


@_backward.register_fake
@on_one_device
def _(log_scores: Tensor, live: Tensor, num_iterations: int, grad_sort: Tensor) -> Tensor:
    return log_scores.new_empty(log_scores.shape)


def _check(log_scores: Tensor, live: Tensor, num_iterations: int) -> None:
    size = log_scores.shape[-1] if log_scores.dim() > 1 else 0
    if log_scores.dtype not in _TYPE_NAMES or not size or log_scores.shape[-2] != size:
        refuse_values("log_scores", log_scores, log_scores.dim(), "(..., n, n)", _TYPE_NAMES)
    check_operand("live", live, log_scores.shape, torch.bool, log_scores.device)
    if num_iterations < 1:
        raise bad_argument("num_iterations", "at least 1", num_iterations)


def _call(
    log_scores: Tensor, live: Tensor, num_iterations: int, grad_sort: Tensor | None
) -> Tensor:
    log_scores, live = log_scores.contiguous(), live.contiguous()
    out = torch.empty_like(log_scores)
    size = log_scores.shape[-1]
    function = getattr(
        require_library(KERNELS), f"rifflemix_balance_{_TYPE_NAMES[log_scores.dtype]}"
    )
    result = function(
        ctypes.c_int64(log_scores.numel() // size**2),
        ctypes.c_int64(size),
        ctypes.c_int64(num_iterations),
        ctypes.c_void_p(log_scores.data_ptr()),
        ctypes.c_void_p(live.data_ptr()),
        ctypes.c_void_p(None if grad_sort is None else grad_sort.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int64(torch.get_num_threads()),
    )
    checked(result)
    return out


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    log_scores, live, ctx.num_iterations = inputs
    ctx.save_for_backward(log_scores, live)


def _differentiate(ctx: Any, grad_sort: Tensor) -> tuple[Tensor | None, None, None]:
    log_scores, live = ctx.saved_tensors
    if torch.is_grad_enabled():
        (gradient,) = second_order_gradients(
            lambda scores: (eager.balance(scores, live, ctx.num_iterations),),
            (log_scores,),
            (grad_sort,),
        )
        return gradient, None, None
    return _backward(log_scores, live, ctx.num_iterations, grad_sort), None, None


_forward.register_autograd(_differentiate, setup_context=_save)
