"""Lower triangular matrices in blocks, with matrix products only.

ONNX has no triangular solver.
"""

from __future__ import annotations

import torch
from torch import Tensor


def inverse(matrix: Tensor) -> Tensor:
    """Invert lower triangular matrices with a diagonal of ones.

    The inverses of two neighboring diagonal blocks give the inverse of the block that joins them.

    Args:
        matrix: (..., L, L), L a power of two. The diagonal and the entries above it are not read.

    Returns:
        (..., L, L).
    """
    size = matrix.shape[-1]
    found = torch.ones_like(matrix[..., :1]).unsqueeze(-1)
    half = 1
    while half < size:
        blocks = matrix.unflatten(-1, (-1, 2 * half)).unflatten(-3, (-1, 2 * half))
        below = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., half:, :half]
        earlier, later = found.unflatten(-3, (-1, 2)).unbind(-3)
        found = join(found, -(later @ below @ earlier))
        half *= 2
    return found.squeeze(-3)


def join(blocks: Tensor, below: Tensor) -> Tensor:
    """Join diagonal blocks (..., 2 n, h, h) in pairs, with (..., n, h, h) below the diagonal."""
    earlier, later = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    above = torch.cat((earlier, torch.zeros_like(below)), -1)
    return torch.cat((above, torch.cat((below, later), -1)), -2)
