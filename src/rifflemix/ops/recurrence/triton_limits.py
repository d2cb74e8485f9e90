"""Limits of the GPU kernels of this family, without importing Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support

CHUNK = 32
"""Tokens of a chunk."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# A program keeps all features of the keys of a chunk. `_SHARED` is the shared memory of an H100 in
# bytes; on GPUs with less, the keys have fewer features.
_MAX_KEYS, _MAX_KEYS_ON_SMALLER, _SHARED = 128, 64, 227 * 1024


def with_triton(names: tuple[str, ...], q: Tensor) -> tuple[str, ...]:
    """Add "triton" to the backends if its kernels support queries like `q`."""
    if q.dtype not in _DTYPES:
        return names
    return triton_support.with_triton(names, q, q.shape[3] <= _max_keys(q))


def check_limits(q: Tensor) -> None:
    """Check that the kernels support queries (B, H, N, D)."""
    most = _max_keys(q)
    if q.shape[3] > most:
        raise bad_argument("q", f"at most {most} features", q.shape[3])
    triton_support.check_device(q)


def _max_keys(q: Tensor) -> int:
    has_room = triton_support.shared_memory(q.device) >= _SHARED
    return _MAX_KEYS if has_room else _MAX_KEYS_ON_SMALLER
