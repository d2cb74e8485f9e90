"""Causal mask buffers: triangles that host models use to hide later tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def is_square(buffer: Tensor) -> bool:
    """Return whether a buffer has one number per pair of tokens.

    The shape is (N, N) or (1, 1, N, N) with N > 1.
    """
    sides = buffer.shape[-2:]
    return len(sides) == 2 and 1 < sides[0] == sides[1] and buffer.numel() == sides[0] ** 2


def is_triangle(buffer: Tensor) -> bool:
    """Return whether a buffer is a causal mask.

    Examples are `tril` and `triu(1)` of any dtype. On the meta device only the shape is checked.
    """
    if not is_square(buffer):
        return False
    if buffer.is_meta:
        return True
    square = buffer.reshape(buffer.shape[-2:])
    earlier = torch.ones_like(square, dtype=torch.bool).tril()
    seen, hidden = square[-1, 0], square[0, -1]
    return bool(seen != hidden) and bool((square == torch.where(earlier, seen, hidden)).all())


def triangles(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's own buffers that are triangles, by name."""
    return {name: t for name, t in module.named_buffers(recurse=False) if is_triangle(t)}
