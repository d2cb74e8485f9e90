"""Helpers to call the CPU kernels of this family and to check which tokens they support."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.define import define
from rifflemix.ops.native import HUGE, in_huge_pages, library, raise_on_error, require_library

_KERNELS = library()
# Element size in bytes, bits of infinity, bits of the quiet NaN.
FORMATS = {
    torch.float32: (4, 0x7F800000, 0x7FC00000),
    torch.bfloat16: (2, 0x7F80, 0x7FC0),
    torch.float16: (2, 0x7C00, 0x7E00),
}
define_on_cpu = functools.partial(define, dtypes=FORMATS, device_types="cpu")


def supports(x: Tensor) -> bool:
    """Return whether the kernels support the device and the dtype of `x`."""
    return _KERNELS is not None and x.device.type == "cpu" and x.dtype in FORMATS


class _Problem(ctypes.Structure):
    """The struct `Problem` of native/permutation.h."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("y", ctypes.c_void_p),
        ("index", ctypes.c_void_p),
        ("index_bytes", ctypes.c_int64),
        ("swaps", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("descending", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("group_size", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("element_bytes", ctypes.c_int64),
        ("infinity", ctypes.c_int64),
        ("nan", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    ]


@functools.cache
def _function(kernels: ctypes.CDLL | None, name: str) -> Any:
    function = getattr(require_library(kernels), f"rifflemix_{name}")
    function.restype = ctypes.c_int64
    return function


def call_kernel(
    kernel: str,
    x: Tensor,
    group_size: int = 1,
    heads: int = 0,
    *,
    y: Tensor | None = None,
    index: Tensor | None = None,
    swaps: Tensor | None = None,
    mask: Tensor | None = None,
    descending: Tensor | None = None,
    steps: Tensor | None = None,
) -> int:
    """Call a kernel and return its result code, 0 on success.

    The tensors are the pointer fields of `_Problem`.

    Raises:
        MemoryError: not enough memory for the call. The call then changes nothing else.
    """
    x = x if x.stride(2) == 1 else x.contiguous()
    index_bytes = 0 if index is None or index.numel() == 0 else index.element_size()
    at: list[int | None] = []
    kept = []  # the copies must stay alive during the call
    for tensor in (y, index, swaps, mask, descending, steps):
        whole = None if tensor is None else tensor.contiguous()
        kept.append(whole)
        at.append(None if whole is None else whole.data_ptr())
    # Fields in order: names take a microsecond longer.
    problem = _Problem(
        x.data_ptr(), *x.stride()[:2], *at[:2], index_bytes, *at[2:],
        *x.shape, group_size, heads, *FORMATS[x.dtype], None, torch.get_num_threads(),
    )  # fmt: skip
    call = _function(_KERNELS, kernel)
    size = call(ctypes.byref(problem))
    if size < 0:
        raise_on_error(size)
    scratch = torch.empty(max(1, size), dtype=torch.uint8, device=x.device)
    problem.scratch = scratch.data_ptr()
    result: int = call(ctypes.byref(problem))
    return result if result >= 0 else raise_on_error(result)


def empty_output(x: Tensor, shape: Any = None, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate a kernel output, by default with shape and dtype of `x`."""
    if shape is None and dtype is None:
        made = torch.empty_like(x, memory_format=torch.contiguous_format)
    else:
        shape = x.shape if shape is None else shape
        made = torch.empty(shape, dtype=dtype or x.dtype, device=x.device)
    return made if made.nbytes < HUGE else in_huge_pages(made)
