"""Attention with dropout in a compiled kernel: stores the weights of a few queries at a time.

The backward pass recomputes the weights from the log-sum-exp of each query's scores, and the
dropped elements from the seed. The kernel is in ops/native/attention.cpp. The eager formulas
compute second-order gradients and scores with a bias, the latter with the dropout kernel.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.dropout import cpu, eager
from rifflemix.ops.dropout.cpu import KERNELS, supports
from rifflemix.ops.dropout.spec import scale, threshold
from rifflemix.ops.gradients import second_order_gradients
from rifflemix.ops.native import (
    TYPE_NAMES,
    checked,
    in_huge_pages,
    instruction_level,
    require_library,
)
from rifflemix.ops.operands import check_operand, on_one_device, refuse_values
from rifflemix.ops.operator import operator

# Without vector instructions, torch's matrix products are faster.
_HAS_VECTORS = instruction_level() >= 2


def supports_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Check whether the kernel supports the arguments."""
    return (
        _HAS_VECTORS
        and supports(q)
        and q.dtype == k.dtype == v.dtype
        and q.dim() == k.dim() == v.dim() == 4
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and 0 not in (*q.shape[1:], k.shape[2], v.shape[3])
        and (mask is None or mask.dtype in (torch.bool, q.dtype))
    )


def dropout_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    is_padding: bool,
    p: float,
    seed: Tensor,
) -> Tensor:
    """See `rifflemix.ops.dropout_attention`; `seed` is a () int64 tensor."""
    if mask is not None and mask.dtype != torch.bool:
        return eager.attend(q, k, v, mask, is_causal, partial(cpu.dropout, p=p, seed=seed))
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    y: Tensor = _forward(q, k, v, mask, is_causal, is_padding, seed, p)[0]
    return y


def _empty_tokens(like: Tensor, length: int, features: int) -> Tensor:
    """Allocate (B, H, N, D) with memory layout (B, N, H, D)."""
    batch, heads = like.shape[:2]
    return like.new_empty((batch, length, heads, features)).transpose(1, 2)


def _empty_outputs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    return _empty_tokens(q, q.shape[2], v.shape[3]), q.new_empty(q.shape[:3], dtype=wide)


@operator("rifflemix::dropout_attention", device_types="cpu")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    is_padding: bool,
    seed: Tensor,
    p: float,
) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp of each query's scores."""
    _check(q, k, v, mask, is_padding, seed, p)
    y, lse = _empty_outputs(q, k, v)
    _call(q, k, v, mask, is_causal, is_padding, seed, p, lse, (in_huge_pages(y),))
    return y, lse


_forward.register_fake(on_one_device(_empty_outputs))


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _empty_tokens(q, q.shape[2], q.shape[3]),
        _empty_tokens(k, k.shape[2], k.shape[3]),
        _empty_tokens(v, v.shape[2], v.shape[3]),
    )


@operator("rifflemix::dropout_attention_backward", device_types="cpu")
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    is_padding: bool,
    seed: Tensor,
    p: float,
    y: Tensor,
    lse: Tensor,
    grad_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v."""
    _check(q, k, v, mask, is_padding, seed, p)
    shape = (*q.shape[:3], v.shape[3])
    check_operand("y", y, shape, q.dtype, q.device)
    check_operand("grad_y", grad_y, shape, q.dtype, q.device)
    check_operand("lse", lse, q.shape[:3], torch.promote_types(q.dtype, torch.float32), q.device)
    gradients = _empty_gradients(q, k, v)
    outputs = (_with_whole_rows(y), _with_whole_rows(grad_y), *map(in_huge_pages, gradients))
    _call(q, k, v, mask, is_causal, is_padding, seed, p, lse.contiguous(), outputs)
    return gradients


_backward.register_fake(on_one_device(_empty_gradients))


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    is_padding: bool,
    seed: Tensor,
    p: float,
    lse: Tensor,
    outputs: tuple[Tensor, ...],
) -> None:
    """Run the forward kernel if `outputs` is (y,), else the backward kernel."""
    inputs = [_with_whole_rows(t) for t in (q, k, v)]
    batch, heads, queries, width = q.shape
    keys = k.shape[2]
    mask_strides: tuple[int, ...] = (0, 0, 0, 0)
    if mask is not None:
        mask = mask if mask.stride(3) in (0, 1) else mask.contiguous()
        mask_strides = mask.stride()
    features = (width, v.shape[3])
    flags = (int(is_causal), int(is_padding))
    sizes = (batch, heads, queries, keys, *features, *flags, torch.get_num_threads())
    tensors = [*inputs, mask, lse, *outputs, *[None] * (5 - len(outputs))]
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    strides = [stride for tensor in inputs for stride in tensor.stride()[:3]]
    strides += mask_strides
    strides += [stride for tensor in outputs for stride in tensor.stride()[:3]]
    strides += [0] * (28 - len(strides))
    function = getattr(require_library(KERNELS), f"rifflemix_attention_{TYPE_NAMES[q.dtype]}")
    result = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        ctypes.c_double(1.0 / math.sqrt(width)),
        ctypes.c_double(scale(p)),
        ctypes.c_void_p(seed.data_ptr()),
        ctypes.c_uint32(threshold(p)),
        (ctypes.c_void_p * len(addresses))(*addresses),
        (ctypes.c_int64 * len(strides))(*strides),
    )
    checked(result)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_padding: bool,
    seed: Tensor,
    p: float,
) -> None:
    """Raise InputError for incompatible shapes or empty dimensions (except the batch)."""
    for name, tokens in (("q", q), ("k", k), ("v", v)):
        if tokens.dim() != 4 or tokens.dtype not in TYPE_NAMES or 0 in tokens.shape[1:]:
            refuse_values(name, tokens, 4, "(B, H, N, D)", TYPE_NAMES)
    batch, heads, queries, width = q.shape
    keys = k.shape[2]
    check_operand("k", k, (batch, heads, keys, width), q.dtype, q.device)
    check_operand("v", v, (batch, heads, keys, v.shape[3]), q.dtype, q.device)
    check_operand("seed", seed, (), torch.int64, q.device)
    if mask is not None:
        check_operand("mask", mask, (batch, heads, queries, keys), torch.bool, q.device)
    if is_padding and (mask is None or queries != keys or (queries > 1 and mask.stride(2) != 0)):
        raise bad_argument(
            "is_padding", "False without one mask for all queries, which are the keys", True
        )
    if not 0.0 <= p < 1.0:
        raise bad_argument("p", "a probability in [0, 1)", p)


def _with_whole_rows(tokens: Tensor) -> Tensor:
    """Make the features contiguous; copy only if necessary."""
    return tokens if tokens.stride(-1) == 1 or tokens.shape[-1] == 1 else tokens.contiguous()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.is_causal, ctx.is_padding, seed, ctx.p = inputs
    ctx.save_for_backward(q, k, v, mask, seed, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad_y: Tensor, _: None) -> tuple[Tensor | None, ...]:
    q, k, v, mask, seed, y, lse = ctx.saved_tensors
    if torch.is_grad_enabled():
        grads = second_order_gradients(
            lambda q, k, v: (
                eager.dropout_attention(q, k, v, mask, ctx.is_causal, ctx.is_padding, ctx.p, seed),
            ),
            (q, k, v),
            (grad_y,),
        )
    else:
        grads = _backward(q, k, v, mask, ctx.is_causal, ctx.is_padding, seed, ctx.p, y, lse, grad_y)
    return *grads, None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
