"""Limits of the Sinkhorn GPU kernels. This module does not import Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support
from rifflemix.ops.sinkhorn.kernel_attention import check

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# A program keeps a matrix in registers; running sums along columns need twice the space.
_MAX_BLOCKS, _MAX_CAUSAL_BLOCKS = 128, 64
# Attention keeps a block of queries, a sort matrix, and some features of all blocks in memory.
# `_SIDES` limits their area to side^2, and `_MOST_SIDE` limits each side. The sides of a matrix
# product are at least 16.
_SIDES = {torch.float32: 64, torch.bfloat16: 128, torch.float16: 128}
_LEAST_SIDE, _MOST_SIDE = 16, 128
# `_SHARED`: maximum bytes of shared memory at these limits, available on an H100. On other GPUs,
# the limits are halved and a block has at most `_MOST_OF_HALF` tokens. This needs less than
# `_HALF_SHARED` bytes, available on most GPUs.
_SHARED, _HALF_SHARED, _MOST_OF_HALF = 227 * 1024, 99 * 1024, 64


def with_triton(
    names: tuple[str, ...], log_scores: Tensor, num_iterations: int, causal: bool
) -> tuple[str, ...]:
    """Add "triton" to `names` if its kernels support these scores here."""
    if num_iterations < 1 or log_scores.dtype not in DTYPES:
        return names
    size = log_scores.shape[-1]
    most = _MAX_CAUSAL_BLOCKS if causal else _MAX_BLOCKS
    return triton_support.with_triton(
        names, log_scores, size > 0, size <= most, log_scores.shape[-2] == size
    )


def check_limits(log_scores: Tensor, num_iterations: int, causal: bool) -> None:
    """Raise unless the kernels support scores (..., n, n) on a GPU."""
    size = log_scores.shape[-1]
    most = _MAX_CAUSAL_BLOCKS if causal else _MAX_BLOCKS
    if size > most:
        raise bad_argument("log_scores", f"at most {most} blocks", size)
    if num_iterations < 1:
        raise bad_argument("num_iterations", "at least 1", num_iterations)


def with_triton_attention(
    names: tuple[str, ...], q: Tensor, sort: Tensor, block_size: int
) -> tuple[str, ...]:
    """Add "triton" to `names` if its kernels support this attention here."""
    if q.dtype not in DTYPES:
        return names
    # Triton's interpreter multiplies bfloat16 matrices as if their bits were integers.
    if triton_support.INTERPRETED and q.dtype == torch.bfloat16:
        return names
    limits = _most(q)
    fits = [size <= most for size, most in zip(_sizes(q, sort, block_size), limits, strict=True)]
    return triton_support.with_triton(names, q, *fits)


def check_attention(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, *settings: Any
) -> dict[str, int]:
    """Check the numbers and the sizes of a call; return further sizes for `SHAPES`."""
    sizes = check(q, k, v, sort, block_size, *settings)
    if sort.dim() != 4:
        return sizes  # the check of the shapes follows
    names = ("features", "tokens in a block", "rows of sort", "columns of sort")
    for name, size, most in zip(names, _sizes(q, sort, block_size), _most(q), strict=True):
        if size > most:
            raise bad_argument("q, sort", f"at most {most} {name} in {q.dtype}", size)
    return sizes


def _sizes(q: Tensor, sort: Tensor, block_size: int) -> tuple[int, ...]:
    """Return features, block size, rows and columns of `sort`."""
    return q.shape[3], block_size, *sort.shape[2:]


def _most(q: Tensor) -> tuple[int, ...]:
    """Return the maximum of each size in `_sizes`.

    Only the number of features is read, so compiled graphs support any length.
    """
    side = _SIDES[q.dtype]
    area, tokens = side**2, _MOST_SIDE
    shared = triton_support.shared_memory(q.device)
    if shared < _HALF_SHARED:
        return 0, 0, 0, 0
    if shared < _SHARED:
        side, area, tokens = side // 2, area // 2, _MOST_OF_HALF
    beside_features = min(tokens, area // tile_size(min(q.shape[3], _MOST_SIDE)))
    return _MOST_SIDE, beside_features, *(min(side, beside_features),) * 2


def tile_size(count: int) -> int:
    """Return the tile side for `count` entries.

    It is a power of two and at least 16.
    """
    return max(_LEAST_SIDE, 1 << (int(count) - 1).bit_length())
