"""Helpers to call the compiled CPU kernels of this family."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import runs_kernels
from rifflemix.ops.native import (
    TYPE_NAMES,
    instruction_level,
    library,
    raise_on_error,
    require_library,
)
from rifflemix.ops.statistics.common import accumulation_dtype

# Loaded once at import, because a traced graph must not contain the loading of a library.
_KERNELS = library()
# Without vector instructions, the eager formulas are equally fast.
_HAS_VECTORS = instruction_level() >= 2
# Tokens per chunk. Sums of chunks are added in order, so results do not depend on the threads.
_CHUNK = 64
# The kernels pad the features of a head to a multiple of all vector lengths.
_WIDTH_MULTIPLE = 16


def supports(w: Tensor) -> bool:
    """Return whether the kernels support tokens like `w` here.

    They do not during export, because an exported program must run without rifflemix.
    """
    return _HAS_VECTORS and w.device.type == "cpu" and w.dtype in TYPE_NAMES and runs_kernels()


def call(kernel: str, w: Tensor, *arguments: Any) -> None:
    """Run a kernel for tokens like `w`.

    The kernel gets the sizes of `w`, then `arguments`: tensors, None, flags and C arrays. A tuple
    with a tensor (B, H, N, ...) adds its strides along B, H and N.

    Raises:
        MemoryError: not enough memory for the call. The call then changes only its outputs.
    """
    # Few function calls and one loop, because Python dominates the time for short sequences.
    kernels = _KERNELS or require_library(None)
    function = getattr(kernels, f"rifflemix_{kernel}_{TYPE_NAMES[w.dtype]}")
    columns = -(-w.shape[3] // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE  # width()
    sizes = (*w.shape, columns, _CHUNK, torch.get_num_threads())
    converted: list[Any] = []
    for value in arguments:
        if isinstance(value, Tensor):
            converted.append(ctypes.c_void_p(value.data_ptr()))
        elif isinstance(value, tuple):
            converted.append(ctypes.c_void_p(value[0].data_ptr()))
            converted.append((ctypes.c_int64 * 3)(*value[0].stride()[:3]))
        elif isinstance(value, int):
            converted.append(ctypes.c_int64(value))
        else:
            converted.append(value)
    result = function((ctypes.c_int64 * len(sizes))(*sizes), *converted)
    if result < 0:
        raise_on_error(result)


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """Make a tensor contiguous; None stays None."""
    return None if tensor is None else tensor.contiguous()


def empty_tokens(w: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate (B, H, N, D) with (B, N, H, D) storage."""
    _, heads, length, features = w.shape
    token = heads * features
    strides = (length * token, features, token, 1)
    return w.new_empty_strided(w.shape, strides, dtype=dtype)


def empty_per_token(w: Tensor) -> Tensor:
    """Allocate (B, H, N) with (B, N, H) storage, in the accumulation dtype."""
    batch, heads, length, _ = w.shape
    dtype = accumulation_dtype(w.dtype)
    return w.new_empty_strided((batch, heads, length), (length * heads, 1, heads), dtype=dtype)


def by_token(values: Tensor | None) -> Tensor | None:
    """Return (B, H, N) with (B, N, H) storage, copied only if necessary."""
    return None if values is None else values.transpose(1, 2).contiguous().transpose(1, 2)


def empty_per_chunk(w: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Allocate (B, chunks, H, columns) and (B, chunks, H), in the accumulation dtype."""
    batch, heads, length, _ = w.shape
    chunks = -(-length // _CHUNK)  # num_chunks()
    dtype = accumulation_dtype(w.dtype)
    return (
        w.new_empty((batch, chunks, heads, columns), dtype=dtype),
        w.new_empty((batch, chunks, heads), dtype=dtype),
    )


def num_chunks(length: int) -> int:
    """Return the number of chunks for `length` tokens."""
    return -(-length // _CHUNK)


def width(features: int) -> int:
    """Return the padded number of features of a head."""
    return -(-features // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


def pointers(*tensors: Tensor | None) -> ctypes.Array[ctypes.c_void_p]:
    """Make a C array of pointers.

    The tensors must stay alive during the call.
    """
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(addresses))(*addresses)
