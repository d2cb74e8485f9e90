"""Passing tensors to the compiled kernels of this family."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import has_plain_autograd, leaves_package
from rifflemix.ops.native import TYPE_NAMES, checked, instruction_level, library, require_library
from rifflemix.ops.statistics.common import accumulation_dtype

# Looked up once: a graph that is being traced must not meet the loading of a library.
_KERNELS = library()
# Without vector instructions the eager formulas are as fast.
_HAS_VECTORS = instruction_level() >= 2
# Tokens summed together; the sums of chunks are added in order, whatever the number of threads.
_CHUNK = 64
# The kernels' statistics hold the features of a head in a multiple of every vector length.
_WIDTH_MULTIPLE = 16


def supports(w: Tensor) -> bool:
    """Whether the kernels can run this.

    An exported program must run where this library is not.
    """
    return (
        _HAS_VECTORS
        and w.device.type == "cpu"
        and w.dtype in TYPE_NAMES
        and not leaves_package()
        and has_plain_autograd()
    )


def call(kernel: str, w: Tensor, *arguments: Any) -> None:
    """Run a kernel for tokens like `w`: sizes, then tensors, None, flags and C arrays.

    Raises:
        MemoryError: no memory for the call; nothing but its outputs is touched by it.
    """
    # Few calls of functions, and one loop: a short sequence waits for Python, not for the kernel.
    kernels = _KERNELS or require_library(None)
    function = getattr(kernels, f"rifflemix_{kernel}_{TYPE_NAMES[w.dtype]}")
    columns = -(-w.shape[3] // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE  # width()
    sizes = (*w.shape, columns, _CHUNK, torch.get_num_threads())
    converted = [
        ctypes.c_void_p(value.data_ptr())
        if isinstance(value, Tensor)
        else ctypes.c_int64(value)
        if isinstance(value, int)
        else value
        for value in arguments
    ]
    result = function((ctypes.c_int64 * len(sizes))(*sizes), *converted)
    if result < 0:
        checked(result)


def view(tokens: Tensor) -> tuple[Tensor, ctypes.Array[ctypes.c_int64]]:
    """Tokens (B, H, N, D), or (B, H, N), as kernels take them: data and strides of B, H and N."""
    return tokens, (ctypes.c_int64 * 3)(*tokens.stride()[:3])


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """As a contiguous tensor, if there is one."""
    return None if tensor is None else tensor.contiguous()


def with_whole_rows(tokens: Tensor) -> Tensor:
    """Tokens (B, H, N, D) whose D features lie side by side: a copy only where they do not."""
    if tokens.stride(-1) == 1 or tokens.shape[-1] == 1:
        return tokens
    return tokens.transpose(1, 2).contiguous().transpose(1, 2)


def empty_tokens(w: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """(B, H, N, D) in a (B, N, H, D) storage."""
    batch, heads, length, features = w.shape
    return w.new_empty((batch, length, heads, features), dtype=dtype).transpose(1, 2)


def empty_per_token(w: Tensor) -> Tensor:
    """(B, H, N) in a (B, N, H) storage, in the accumulation dtype."""
    batch, heads, length, _ = w.shape
    empty = w.new_empty((batch, length, heads), dtype=accumulation_dtype(w.dtype))
    return empty.transpose(1, 2)


def by_token(values: Tensor | None) -> Tensor | None:
    """(B, H, N) in a (B, N, H) storage: a copy only where it is not so already."""
    return None if values is None else values.transpose(1, 2).contiguous().transpose(1, 2)


def empty_per_chunk(w: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """(B, chunks, H, columns) and (B, chunks, H), in the accumulation dtype."""
    batch, heads, length, _ = w.shape
    chunks = -(-length // _CHUNK)  # num_chunks()
    dtype = accumulation_dtype(w.dtype)
    return (
        w.new_empty((batch, chunks, heads, columns), dtype=dtype),
        w.new_empty((batch, chunks, heads), dtype=dtype),
    )


def num_chunks(length: int) -> int:
    """Chunks that the kernels cut this many tokens into."""
    return -(-length // _CHUNK)


def width(features: int) -> int:
    """Features of a head in the statistics of the kernels."""
    return -(-features // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


def pointers(*tensors: Tensor | None) -> ctypes.Array[ctypes.c_void_p]:
    """A C structure of pointers; the tensors must outlive the call."""
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(addresses))(*addresses)
