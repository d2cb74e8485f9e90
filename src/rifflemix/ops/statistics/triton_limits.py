"""Limits of this family's GPU kernels, known without importing Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.ops import triton_support

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One program holds all features of a token.
_MAX_CHANNELS = 4096


def with_triton(names: tuple[str, ...], w: Tensor, dropout_p: float) -> tuple[str, ...]:
    """Backends with "triton" among them if its kernels take these tokens here, and no dropout."""
    if w.dtype not in _DTYPES or dropout_p != 0.0:
        return names
    return triton_support.with_triton(names, w, w.shape[1] * w.shape[3] <= _MAX_CHANNELS)


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (int(count) - 1).bit_length()
