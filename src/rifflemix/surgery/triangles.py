"""Buffers that hide later tokens: the triangle by which many hosts say that they are causal."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def is_square(buffer: Tensor) -> bool:
    """Whether it is one number for each pair of tokens, (N, N) or (1, 1, N, N), N > 1."""
    sides = buffer.shape[-2:]
    return len(sides) == 2 and 1 < sides[0] == sides[1] and buffer.numel() == sides[0] ** 2


def is_triangle(buffer: Tensor) -> bool:
    """Whether a square says one thing of each token and those before it, another of later ones.

    `tril` and `triu(1)` of any dtype do. On the meta device the shape has to be enough.
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
    """Its own buffers that are triangles, by their names."""
    return {name: t for name, t in module.named_buffers(recurse=False) if is_triangle(t)}
