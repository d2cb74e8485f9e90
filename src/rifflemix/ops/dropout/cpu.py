"""Dropout with a compiled kernel: one multithreaded pass that stores a seed, not a mask."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import has_plain_autograd, leaves_package
from rifflemix.errors import bad_argument
from rifflemix.ops.dropout.spec import scale, threshold
from rifflemix.ops.native import TYPE_NAMES, checked, in_huge_pages, library, require_library
from rifflemix.ops.operands import check_operand, on_one_device
from rifflemix.ops.operator import operator

# Loaded at import: loading a library cannot be traced.
KERNELS = library()


def supports(x: Tensor) -> bool:
    """Check whether the kernel supports `x`.

    Exported programs do not use the kernel, because they must run without this library.
    """
    return (
        KERNELS is not None
        and x.device.type == "cpu"
        and x.dtype in TYPE_NAMES
        and not leaves_package()
        and has_plain_autograd()
    )


def dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """See `rifflemix.ops.dropout`; `seed` is a () int64 tensor."""
    y: Tensor = _apply(x, seed, p)
    return y


@operator("rifflemix::dropout", device_types="cpu")
def _apply(x: Tensor, seed: Tensor, p: float) -> Tensor:
    if x.dtype not in TYPE_NAMES:
        raise bad_argument("x", " or ".join(map(str, TYPE_NAMES)), x.dtype)
    if not 0.0 <= p < 1.0:
        raise bad_argument("p", "a probability in [0, 1)", p)
    check_operand("seed", seed, (), torch.int64, x.device)
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
    checked(result)
    return y


@_apply.register_fake
@on_one_device
def _(x: Tensor, seed: Tensor, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, seed, ctx.p = inputs
    ctx.save_for_backward(seed)


def _differentiate(ctx: Any, grad_y: Tensor) -> tuple[Tensor, None, None]:
    """Apply the same dropout to the gradient: dropout is linear."""
    (seed,) = ctx.saved_tensors
    return _apply(grad_y, seed, ctx.p), None, None


_apply.register_autograd(_differentiate, setup_context=_save)
