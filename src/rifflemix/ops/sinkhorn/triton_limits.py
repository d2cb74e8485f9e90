"""Limits of this family's GPU kernels, known without importing Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support
from rifflemix.ops.operands import refuse_values

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# A program holds a matrix in its registers, and twice as much where sums run along columns.
_MAX_BLOCKS, _MAX_CAUSAL_BLOCKS = 128, 64


def with_triton(
    names: tuple[str, ...], log_scores: Tensor, num_iterations: int, causal: bool
) -> tuple[str, ...]:
    """Backends with "triton" among them if its kernels balance these scores here."""
    if num_iterations < 1 or log_scores.dtype not in _DTYPES:
        return names
    size = log_scores.shape[-1]
    most = _MAX_CAUSAL_BLOCKS if causal else _MAX_BLOCKS
    return triton_support.with_triton(
        names, log_scores, size > 0, size <= most, log_scores.shape[-2] == size
    )


def check_limits(log_scores: Tensor, num_iterations: int, causal: bool) -> None:
    """Raise unless the kernels take scores (..., n, n) like these, on whatever device."""
    size = log_scores.shape[-1] if log_scores.dim() > 1 else 0
    if log_scores.dtype not in _DTYPES or not size or log_scores.shape[-2] != size:
        refuse_values("log_scores", log_scores, log_scores.dim(), "(..., n, n)", _DTYPES)
    most = _MAX_CAUSAL_BLOCKS if causal else _MAX_BLOCKS
    if size > most:
        raise bad_argument("log_scores", f"at most {most} blocks", size)
    if num_iterations < 1:
        raise bad_argument("num_iterations", "at least 1", num_iterations)
