"""Sparse Sinkhorn attention in a compiled kernel that sorts and attends in one pass.

Forward and backward keep the sorted keys and values of only a few blocks in memory. They read and
write tokens in place, and recompute the dropped weights from a seed. The kernel is in
ops/native/block_attention.cpp. The plain formula computes second-order gradients.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial

import torch
from torch import Tensor

from rifflemix.ops.dropout.cpu import KERNELS
from rifflemix.ops.dropout.spec import scale, threshold
from rifflemix.ops.native import (
    TYPE_NAMES,
    checked,
    in_huge_pages,
    instruction_level,
    require_library,
)
from rifflemix.ops.operands import check_operand, on_one_device
from rifflemix.ops.operator import operator
from rifflemix.ops.sinkhorn.kernel_attention import (
    Terms,
    attend_by,
    by_head,
    check,
    empty_gradients,
    empty_outputs,
    register_gradients,
)

# Without vector instructions, torch's matrix products are faster.
HAS_VECTORS = instruction_level() >= 2


@operator("rifflemix::sinkhorn_attention", device_types="cpu")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    unseen: Tensor | None,
    padding: Tensor | None,
    mixes_padding: bool,
    causal: bool,
    seed: Tensor | None,
    p: float,
) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp of each query's scores."""
    terms = Terms(unseen, padding, mixes_padding, causal, seed, p)
    check(q, k, v, sort, block_size, TYPE_NAMES)
    terms.check(q, sort, block_size)
    y, lse = empty_outputs(q, k, v, sort, block_size)
    _call(q, k, v, sort, block_size, terms, lse, (in_huge_pages(y),))
    return y, lse


_forward.register_fake(on_one_device(empty_outputs))


@operator("rifflemix::sinkhorn_attention_backward", device_types="cpu")
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    unseen: Tensor | None,
    padding: Tensor | None,
    mixes_padding: bool,
    causal: bool,
    seed: Tensor | None,
    p: float,
    lse: Tensor,
    grad_y: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of Q, K, V (one tensor) and `sort`."""
    terms = Terms(unseen, padding, mixes_padding, causal, seed, p)
    check(q, k, v, sort, block_size, TYPE_NAMES)
    terms.check(q, sort, block_size)
    check_operand("grad_y", grad_y, q.shape, q.dtype, q.device)
    check_operand("lse", lse, q.shape[:3], torch.promote_types(q.dtype, torch.float32), q.device)
    grads, grad_sort = empty_gradients(q, k, v, sort)
    outputs = (grad_y, *by_head(in_huge_pages(grads)), grad_sort)
    _call(q, k, v, sort, block_size, terms, lse.contiguous(), outputs)
    return grads, grad_sort


_backward.register_fake(on_one_device(empty_gradients))


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    terms: Terms,
    lse: Tensor,
    outputs: tuple[Tensor, ...],
) -> None:
    """Run the forward kernel if `outputs` is (y,), else the backward kernel."""
    # The kernel needs contiguous features. Tensors that it writes already have them.
    tensors = [
        x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
        for x in (q, k, v, sort, *outputs)
    ]
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
    strides = [stride for tensor in tensors for stride in tensor.stride()[:3]]
    function = getattr(require_library(KERNELS), f"rifflemix_block_attention_{TYPE_NAMES[q.dtype]}")
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
    checked(result)


register_gradients(_forward, _backward, needs_y=False)
sinkhorn_attention = partial(attend_by, _forward)
"""See `rifflemix.ops.sinkhorn.sinkhorn_attention`; needs settings with one softmax."""
