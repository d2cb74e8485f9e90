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
from rifflemix.ops.define import define
from rifflemix.ops.dropout.cpu import KERNELS
from rifflemix.ops.native import raise_on_error, require_library
from rifflemix.ops.sinkhorn import eager

_TYPE_NAMES = {torch.float32: "float32", torch.float64: "float64"}


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


def _check(log_scores: Tensor, live: Tensor, *settings: Any) -> None:
    num_iterations, causal, last_rows, *_ = settings
    if num_iterations < 1:
        raise bad_argument("num_iterations", "at least 1", num_iterations)
    if last_rows and not causal:
        raise bad_argument("last_rows", "False unless causal", True)


def _balance(
    log_scores: Tensor,
    live: Tensor,
    num_iterations: int,
    causal: bool,
    last_rows: bool,
    grad_sort: Tensor | None = None,
) -> Tensor:
    """Compute the sort matrix, or with `grad_sort` the gradient of the scores.

    `live` marks the entries that may be positive.
    """
    log_scores, live = log_scores.contiguous(), live.contiguous()
    grad_sort = None if grad_sort is None else grad_sort.contiguous()
    out = torch.empty_like(log_scores)
    size = log_scores.shape[-1]
    flags = (int(causal), int(last_rows))
    sizes = (log_scores.numel() // size**2, size, num_iterations, *flags, torch.get_num_threads())
    kernels = KERNELS or require_library(None)
    function = getattr(kernels, f"rifflemix_balance_{_TYPE_NAMES[log_scores.dtype]}")
    result = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        ctypes.c_void_p(log_scores.data_ptr()),
        ctypes.c_void_p(live.data_ptr()),
        ctypes.c_void_p(None if grad_sort is None else grad_sort.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
    )
    if result < 0:
        raise_on_error(result)
    return out


_ARGUMENTS = "Tensor log_scores, Tensor live, SymInt num_iterations, bool causal, bool last_rows"
_backward = define(
    "balance_backward",
    schema=f"({_ARGUMENTS}, Tensor grad_sort) -> Tensor",
    shapes="log_scores: ... K K, live: ... K K bool, grad_sort: ... K K",
    dtypes=_TYPE_NAMES,
    check=_check,
    like="log_scores",
    device_types="cpu",
)(_balance)
_forward = define(
    "balance",
    schema=f"({_ARGUMENTS}) -> Tensor",
    shapes="log_scores: ... K K, live: ... K K bool",
    dtypes=_TYPE_NAMES,
    check=_check,
    like="log_scores",
    saves="log_scores live num_iterations causal last_rows",
    backward=_backward,
    formula=eager.balance,
    device_types="cpu",
)(_balance)
