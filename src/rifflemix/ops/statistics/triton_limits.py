"""Limits of the GPU kernels of this family, without importing Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One program needs registers for all features of a token.
_MAX_CHANNELS = 4096


def with_triton(names: tuple[str, ...], w: Tensor) -> tuple[str, ...]:
    """Add "triton" to the backends if its kernels support `w`."""
    if w.dtype not in DTYPES:
        return names
    return triton_support.with_triton(names, w, w.shape[1] * w.shape[3] <= _MAX_CHANNELS)


def check_limits(w: Tensor) -> None:
    """Check that the kernels support the tokens `w` (B, H, N, D)."""
    triton_support.check_device(w)
    channels = w.shape[1] * w.shape[3]
    if channels > _MAX_CHANNELS:
        raise bad_argument("w", f"at most {_MAX_CHANNELS:,} features of all heads", channels)
