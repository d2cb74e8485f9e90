"""Sparse Sinkhorn attention by a compiled kernel: blocks are sorted where they are attended to.

Sorted keys and values exist for a few blocks at a time, forward and backward, and tokens are read
and written wherever they lie. The kernel is in ops/native/block_attention.cpp. A gradient of a
gradient is left to the eager formulas, as are masks, causal forms and dropout.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.dropout.cpu import KERNELS, supports
from rifflemix.ops.gradients import second_order_gradients
from rifflemix.ops.native import (
    TYPE_NAMES,
    checked,
    in_huge_pages,
    instruction_level,
    require_library,
)
from rifflemix.ops.operands import check_count, check_operand, on_one_device, refuse_values
from rifflemix.ops.operator import operator
from rifflemix.ops.sinkhorn import eager_attention

# Without vector instructions torch's matrix products are faster.
_HAS_VECTORS = instruction_level() >= 2
_PLAIN: dict[str, Any] = {
    "combine": "concat",
    "sortcut": 0,
    "mixture": False,
    "causal": False,
    "key_padding_mask": None,
    "null_kv": None,
    "rotation": 0,
    "dropout_p": 0.0,
}
"""The settings of `sinkhorn_attention` that the kernel knows."""


def supports_attention(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, settings: dict[str, Any]
) -> bool:
    """Whether the kernel can run this; torch.compile cannot trace a comparison with `_PLAIN`."""
    return (
        _HAS_VECTORS
        and settings["combine"] == "concat"
        and settings["key_padding_mask"] is None
        and settings["null_kv"] is None
        and not settings["sortcut"]
        and not settings["mixture"]
        and not settings["causal"]
        and not settings["rotation"]
        and not settings["dropout_p"]
        and q.dtype == k.dtype == v.dtype == sort.dtype
        and q.shape == k.shape == v.shape
        and 0 not in q.shape[1:]
        and supports(q)
    )


def sinkhorn_attention(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, **settings: Any
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sinkhorn_attention`; the settings are those of `_PLAIN`."""
    y: Tensor = _forward(q, k, v, sort, block_size)[0]
    return y


def _empty_outputs(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """(B, H, N, D) in a (B, N, H, D) storage, and (B, H, N)."""
    batch, heads, length, width = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    y = q.new_empty((batch, length, heads, width)).transpose(1, 2)
    return y, q.new_empty(q.shape[:3], dtype=wide)


@operator("rifflemix::sinkhorn_attention", device_types="cpu")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """Output, and the log-sum-exp of each query's scores."""
    _check(q, k, v, sort, block_size)
    y, lse = _empty_outputs(q, k, v, sort, block_size)
    _call(q, k, v, sort, block_size, lse, (in_huge_pages(y),))
    return y, lse


_forward.register_fake(on_one_device(_empty_outputs))


def _empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    """(B, N, 3, H, D) for queries, keys and values, and the like of `sort`."""
    batch, heads, length, width = q.shape
    return q.new_empty((batch, length, 3, heads, width)), sort.new_empty(sort.shape)


@operator("rifflemix::sinkhorn_attention_backward", device_types="cpu")
def _backward(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, lse: Tensor, grad_y: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients: of queries, keys and values side by side, and of the sort matrix."""
    _check(q, k, v, sort, block_size)
    check_operand("grad_y", grad_y, q.shape, q.dtype, q.device)
    check_operand("lse", lse, q.shape[:3], torch.promote_types(q.dtype, torch.float32), q.device)
    grads, grad_sort = _empty_gradients(q, k, v, sort)
    outputs = (grad_y, *_by_head(in_huge_pages(grads)), grad_sort)
    _call(q, k, v, sort, block_size, lse.contiguous(), outputs)
    return grads, grad_sort


_backward.register_fake(on_one_device(_empty_gradients))


def _by_head(grads: Tensor) -> tuple[Tensor, ...]:
    """(B, N, 3, H, D) -> three times (B, H, N, D)."""
    return tuple(part.transpose(1, 2) for part in grads.unbind(2))


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    lse: Tensor,
    outputs: tuple[Tensor, ...],
) -> None:
    """Run the kernel: the forward pass with y alone as output, else with what backward has."""
    # Features lie side by side; what is written does by itself.
    tensors = [
        x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
        for x in (q, k, v, sort, *outputs)
    ]
    batch, heads, length, width = q.shape
    sizes = (batch, heads, length, width, block_size, sort.shape[2], torch.get_num_threads())
    addresses = [lse.data_ptr(), *map(Tensor.data_ptr, tensors)]
    strides = [stride for tensor in tensors for stride in tensor.stride()[:3]]
    function = getattr(require_library(KERNELS), f"rifflemix_block_attention_{TYPE_NAMES[q.dtype]}")
    result = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        ctypes.c_double(1.0 / math.sqrt(width)),
        (ctypes.c_void_p * len(addresses))(*addresses),
        (ctypes.c_int64 * len(strides))(*strides),
        ctypes.c_int(len(outputs) > 1),
    )
    checked(result)


def _check(q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int) -> None:
    """Raise unless the tensors fit each other, with something along all sizes but the batch."""
    if q.dim() != 4 or q.dtype not in TYPE_NAMES or 0 in q.shape[1:]:
        refuse_values("q", q, 4, "(B, H, N, D)", TYPE_NAMES)
    for name, tokens in (("k", k), ("v", v)):
        check_operand(name, tokens, q.shape, q.dtype, q.device)
    check_count("block_size", block_size, q.shape[2], "the number of tokens")
    blocks = q.shape[2] // block_size
    rows = max(sort.shape[2] // blocks, 1) * blocks if sort.dim() == 4 else blocks
    check_operand("sort", sort, (*q.shape[:2], rows, blocks), q.dtype, q.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, sort, ctx.block_size = inputs
    ctx.save_for_backward(q, k, v, sort, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad_y: Tensor, _: None) -> tuple[Tensor | None, ...]:
    q, k, v, sort, lse = ctx.saved_tensors
    if torch.is_grad_enabled():
        formula = partial(_in_eager, block_size=ctx.block_size)
        found = second_order_gradients(formula, (q, k, v, sort), (grad_y,))
        return (*found, None)
    grads, grad_sort = _backward(q, k, v, sort, ctx.block_size, lse, grad_y)
    return *_by_head(grads), grad_sort, None


_forward.register_autograd(_differentiate, setup_context=_save)


def _in_eager(q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int) -> tuple[Tensor]:
    """The same by a formula that can be differentiated again."""
    y = eager_attention.sinkhorn_attention(
        q, k, v, sort, block_size, sortcut_local=False, padding_rule="majority", **_PLAIN
    )
    return (y,)
