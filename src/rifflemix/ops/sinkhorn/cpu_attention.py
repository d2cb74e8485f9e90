"""Sparse Sinkhorn attention in a compiled kernel that sorts and attends in one pass.

Forward and backward keep the sorted keys and values of only a few blocks in memory. They read and
write tokens in place, and recompute the dropped weights from a seed. The kernel is in
ops/native/block_attention.cpp. The plain formula computes second-order gradients.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

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

# Without vector instructions, torch's matrix products are faster.
HAS_VECTORS = instruction_level() >= 2


@define(
    "sinkhorn_attention_backward",
    schema=f"({ARGUMENTS}, Tensor lse, Tensor grad_y) -> (Tensor, Tensor)",
    shapes=f"{SHAPES}, lse: B H N wide, grad_y: B H N D",
    dtypes=TYPE_NAMES,
    check=check,
    like=empty_gradients,
    device_types="cpu",
)
def _backward(
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
    backward=gradients_by(_backward),
    formula=partial(formula, drop_weights),
    device_types="cpu",
)
def _forward(
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


sinkhorn_attention = partial(run_kernel, _forward)
"""See `rifflemix.ops.sinkhorn.sinkhorn_attention`; needs settings with one softmax."""
