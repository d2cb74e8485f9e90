"""Dropout and attention with dropout in compiled kernels that store a seed, not a mask.

The attention kernel stores the weights of a few queries at a time. Its backward pass recomputes the
weights from the log-sum-exp of each query's scores, and the dropped elements from the seed. The
kernel is in ops/native/attention.cpp. The eager formulas compute second-order gradients and scores
with a bias, the latter with the dropout kernel.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import runs_kernels
from rifflemix.errors import bad_argument
from rifflemix.ops.define import define
from rifflemix.ops.dropout import eager
from rifflemix.ops.dropout.spec import scale, threshold
from rifflemix.ops.native import (
    TYPE_NAMES,
    in_huge_pages,
    instruction_level,
    library,
    raise_on_error,
    require_library,
)

# Loaded at import: loading a library cannot be traced.
KERNELS = library()


def supports(x: Tensor) -> bool:
    """Check whether the kernel supports `x`.

    Exported programs do not use the kernel, because they must run without this library.
    """
    return (
        KERNELS is not None and x.device.type == "cpu" and x.dtype in TYPE_NAMES and runs_kernels()
    )


def dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """See `rifflemix.ops.dropout`; `seed` is a () int64 tensor."""
    return _apply(x, seed, p)


def _check_dropout(x: Tensor, seed: Tensor, p: float) -> None:
    if not 0.0 <= p < 1.0:
        raise bad_argument("p", "a probability in [0, 1)", p)


def _gradient(seed: Tensor, p: float, grad: Tensor) -> Any:
    """Apply the same dropout to the gradient: dropout is linear."""
    return _apply(grad, seed, p)


@define(
    "dropout",
    shapes="x: ..., seed: int64",
    dtypes=TYPE_NAMES,
    check=_check_dropout,
    like=lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format),
    saves="seed p",
    backward=_gradient,
    device_types="cpu",
)
def _apply(x: Tensor, seed: Tensor, p: float) -> Tensor:
    x = x.contiguous()
    y = in_huge_pages(torch.empty_like(x))
    function = getattr(require_library(KERNELS), f"rifflemix_dropout_{TYPE_NAMES[x.dtype]}")
    result = function(
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(y.data_ptr()),
        ctypes.c_int64(x.numel()),
        ctypes.c_void_p(seed.data_ptr()),
        ctypes.c_uint32(threshold(p)),
        ctypes.c_double(scale(p)),
        ctypes.c_int64(torch.get_num_threads()),
    )
    raise_on_error(result)
    return y


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
        return eager.attend(q, k, v, mask, is_causal, partial(dropout, p=p, seed=seed))
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    return _forward(q, k, v, mask, is_causal, is_padding, seed, p)[0]


def _empty_tokens(like: Tensor, length: int, features: int) -> Tensor:
    """Allocate (B, H, N, D) with memory layout (B, N, H, D)."""
    batch, heads = like.shape[:2]
    return like.new_empty((batch, length, heads, features)).transpose(1, 2)


def _empty_outputs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    return _empty_tokens(q, q.shape[2], v.shape[3]), q.new_empty(q.shape[:3], dtype=wide)


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal, bool is_padding, Tensor seed, "
    "float p"
)
_SHAPES = "q: B H N D, k: B H S D, v: B H S E, mask: B H N S bool, seed: int64"


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    is_padding: bool,
    seed: Tensor,
    p: float,
    *_: Tensor,
) -> None:
    if is_padding:
        is_square = k.dim() == 4 and q.shape[2] == k.shape[2]
        if not is_square or mask is None or (q.shape[2] > 1 and mask.stride(-2) != 0):
            expected = "False without one mask for all queries, which are the keys"
            raise bad_argument("is_padding", expected, True)
    _check_dropout(q, seed, p)


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _empty_tokens(q, q.shape[2], q.shape[3]),
        _empty_tokens(k, k.shape[2], k.shape[3]),
        _empty_tokens(v, v.shape[2], v.shape[3]),
    )


@define(
    "dropout_attention_backward",
    schema=f"({_ARGUMENTS}, Tensor y, Tensor lse, Tensor grad_y) -> (Tensor, Tensor, Tensor)",
    shapes=f"{_SHAPES}, y: B H N E, lse: B H N wide, grad_y: B H N E",
    dtypes=TYPE_NAMES,
    check=_check,
    like=_empty_gradients,
    device_types="cpu",
)
def _backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v."""
    *inputs, y, lse, grad_y = arguments
    gradients = _empty_gradients(*arguments)
    outputs = (_with_whole_rows(y), _with_whole_rows(grad_y), *map(in_huge_pages, gradients))
    _call(inputs, lse.contiguous(), outputs)
    return gradients


def _formula(*inputs: Any) -> Tensor:
    q, k, v, mask, is_causal, is_padding, seed, p = inputs
    return eager.dropout_attention(q, k, v, mask, is_causal, is_padding, p, seed)


@define(
    "dropout_attention",
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)",
    shapes=_SHAPES,
    dtypes=TYPE_NAMES,
    check=_check,
    like=_empty_outputs,
    outputs="y | lse",
    saves="q k v mask is_causal is_padding seed p y lse",
    backward=_backward,
    formula=_formula,
    device_types="cpu",
)
def _forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp of each query's scores."""
    y, lse = _empty_outputs(*inputs)
    _call(inputs, lse, (in_huge_pages(y),))
    return y, lse


def _call(arguments: Sequence[Any], lse: Tensor, outputs: tuple[Tensor, ...]) -> None:
    """Run the forward kernel if `outputs` is (y,), else the backward kernel."""
    q, k, v, mask, is_causal, is_padding, seed, p = arguments
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
    raise_on_error(result)


def _with_whole_rows(tokens: Tensor) -> Tensor:
    """Make the features contiguous; copy only if necessary."""
    return tokens if tokens.stride(-1) == 1 or tokens.shape[-1] == 1 else tokens.contiguous()
