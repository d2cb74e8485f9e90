"""Queries, keys and values of one linear map, taken apart without a copy forward or backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import is_batch, storage_key
from rifflemix.mixers._attention.fused_features import fuses_features


def apart(heads: Tensor) -> tuple[Tensor, ...]:
    """(B, N, P, H, D) -> P views (B, N, H, D).

    Gradients that lie side by side as the views do, as our kernels write them, are the gradient of
    the whole; others go together in one copy.
    """
    if not (heads.requires_grad and fuses_features()):
        return heads.unbind(2)
    parts: tuple[Tensor, ...] = _Apart.apply(heads)  # type: ignore[no-untyped-call] # torch's own
    return parts


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor) -> tuple[Tensor, ...]:
        return heads.unbind(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _whole(grads) if _lie_side_by_side(grads) else torch.stack(grads, 2)


def _lie_side_by_side(parts: tuple[Tensor, ...]) -> bool:
    """Whether parts (B, N, H, D) are views of one (B, N, P, H, D) that takes no gradient itself."""
    if torch.is_grad_enabled() or any(map(is_batch, parts)):
        return False
    first = parts[0]
    length, heads, width = first.shape[1:]
    step = heads * width
    token = len(parts) * step
    strides = (length * token, token, width, 1)
    memory = storage_key(first)
    return all(
        part.stride() == strides
        and part.storage_offset() == first.storage_offset() + i * step
        and storage_key(part) == memory
        for i, part in enumerate(parts)
    )


def _whole(parts: tuple[Tensor, ...]) -> Tensor:
    batch, length, heads, width = parts[0].shape
    row, token, head, feature = parts[0].stride()
    shape = (batch, length, len(parts), heads, width)
    return parts[0].as_strided(shape, (row, token, heads * width, head, feature))
