"""Dropout with a compiled kernel: one multithreaded pass that stores a seed, not a mask."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import runs_kernels
from rifflemix.errors import bad_argument
from rifflemix.ops.define import define
from rifflemix.ops.dropout.spec import scale, threshold
from rifflemix.ops.native import TYPE_NAMES, in_huge_pages, library, raise_on_error, require_library

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
    y: Tensor = _apply(x, seed, p)
    return y


def _check(x: Tensor, seed: Tensor, p: float) -> None:
    if not 0.0 <= p < 1.0:
        raise bad_argument("p", "a probability in [0, 1)", p)


def _gradient(seed: Tensor, p: float, grad: Tensor) -> Any:
    """Apply the same dropout to the gradient: dropout is linear."""
    return _apply(grad, seed, p)


@define(
    "dropout",
    shapes="x: ..., seed: int64",
    dtypes=TYPE_NAMES,
    check=_check,
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
