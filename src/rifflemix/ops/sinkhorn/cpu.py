"""Sparse Sinkhorn sorting in compiled kernels: balancing, and attention to sorted blocks.

The balancing kernel runs all steps while the matrix is in the CPU cache. Its backward pass
recomputes the steps, so they are not stored. The kernel is in ops/native/balance.cpp.

The attention kernel keeps the sorted keys and values of only a few blocks in memory, forward and
backward. It reads and writes tokens in place, and recomputes the dropped weights from a seed. The
kernel is in ops/native/block_attention.cpp.

The eager formulas compute second-order gradients.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.define import define
from rifflemix.ops.dropout.cpu import KERNELS
from rifflemix.ops.dropout.spec import scale, threshold
from rifflemix.ops.native import (
    HUGE,
    TYPE_NAMES,
    in_huge_pages,
    instruction_level,
    raise_on_error,
    require_library,
)
from rifflemix.ops.sinkhorn import eager
from rifflemix.ops.sinkhorn.kernel_attention import (
    ARGUMENTS,
    SAVES,
    SHAPES,
    Visibility,
    by_head,
    check,
    drop_weights,
    empty_gradients,
    empty_outputs,
    formula,
    gradients_by,
    run_kernel,
)

_TYPE_NAMES = {torch.float32: "float32", torch.float64: "float64"}
# Without vector instructions, torch's matrix products are faster.
HAS_VECTORS = instruction_level() >= 2


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
    sort: Tensor = _balance(wide, live, num_iterations, causal, causal and final_row_norm)
    return sort.to(log_scores.dtype)


def _check(log_scores: Tensor, live: Tensor, *settings: Any) -> None:
    num_iterations, causal, last_rows, *_ = settings
    if num_iterations < 1:
        raise bad_argument("num_iterations", "at least 1", num_iterations)
    if last_rows and not causal:
        raise bad_argument("last_rows", "False unless causal", True)


def _call_balance(
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
_balance_backward = define(
    "balance_backward",
    schema=f"({_ARGUMENTS}, Tensor grad_sort) -> Tensor",
    shapes="log_scores: ... K K, live: ... K K bool, grad_sort: ... K K",
    dtypes=_TYPE_NAMES,
    check=_check,
    like="log_scores",
    device_types="cpu",
)(_call_balance)
_balance = define(
    "balance",
    schema=f"({_ARGUMENTS}) -> Tensor",
    shapes="log_scores: ... K K, live: ... K K bool",
    dtypes=_TYPE_NAMES,
    check=_check,
    like="log_scores",
    saves="log_scores live num_iterations causal last_rows",
    backward=_balance_backward,
    formula=eager.balance,
    device_types="cpu",
)(_call_balance)


@define(
    "sinkhorn_attention_backward",
    schema=f"({ARGUMENTS}, Tensor lse, Tensor grad_y) -> (Tensor, Tensor)",
    shapes=f"{SHAPES}, lse: B H N wide, grad_y: B H N D",
    dtypes=TYPE_NAMES,
    check=check,
    like=empty_gradients,
    device_types="cpu",
)
def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, *others: Any
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of Q, K, V (one tensor) and `sort`."""
    *terms, lse, grad_y = others
    grads, grad_sort = empty_gradients(q, k, v, sort)
    outputs = (grad_y, *by_head(in_huge_pages(grads)), grad_sort)
    _call(q, k, v, sort, block_size, Visibility(*terms), lse.contiguous(), outputs)
    return grads, grad_sort


@define(
    "sinkhorn_attention",
    schema=f"({ARGUMENTS}) -> (Tensor, Tensor)",
    shapes=SHAPES,
    dtypes=TYPE_NAMES,
    check=check,
    like=empty_outputs,
    outputs="y | lse",
    saves=f"{SAVES} lse",
    backward=gradients_by(_attend_backward),
    formula=partial(formula, drop_weights),
    device_types="cpu",
)
def _attend(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, *terms: Any
) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp of each query's scores."""
    y, lse = empty_outputs(q, k, v, sort, block_size)
    _call(
        q,
        k,
        v,
        sort,
        block_size,
        Visibility(*terms),
        lse,
        (y if y.nbytes < HUGE else in_huge_pages(y),),
    )
    return y, lse


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    terms: Visibility,
    lse: Tensor,
    outputs: tuple[Tensor, ...],
) -> None:
    """Run the forward kernel if `outputs` is (y,), else the backward kernel."""
    # The kernel needs contiguous features. Tensors that it writes already have them.
    tensors: list[Tensor] = []
    strides: list[int] = []
    for x in (q, k, v, sort, *outputs):
        whole = x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
        tensors.append(whole)
        strides.extend(whole.stride()[:3])
    unseen = None if terms.unseen is None else terms.unseen.contiguous()
    padding = None if terms.padding is None else terms.padding.contiguous()
    seed, p = terms.seed, terms.p
    batch, heads, length, width = q.shape
    shape = (batch, heads, length, width, block_size, sort.shape[2])
    sizes = (*shape, int(terms.mixes_padding), int(terms.causal), torch.get_num_threads())
    addresses = [
        None if unseen is None else unseen.data_ptr(),
        None if padding is None else padding.data_ptr(),
        *map(Tensor.data_ptr, (lse, *tensors)),
    ]
    kernels = KERNELS or require_library(None)
    function = getattr(kernels, f"rifflemix_block_attention_{TYPE_NAMES[q.dtype]}")
    result = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        ctypes.c_double(1.0 / math.sqrt(width)),
        ctypes.c_double(scale(p) if p else 1.0),
        ctypes.c_void_p(None if seed is None else seed.data_ptr()),
        ctypes.c_uint32(threshold(p) if p else 0),
        (ctypes.c_void_p * len(addresses))(*addresses),
        (ctypes.c_int64 * len(strides))(*strides),
        ctypes.c_int(len(outputs) > 1),
    )
    if result < 0:
        raise_on_error(result)


sinkhorn_attention = partial(run_kernel, _attend)
"""See `rifflemix.ops.sinkhorn.sinkhorn_attention`; needs settings with one softmax."""
