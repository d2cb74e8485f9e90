"""Split the output of a joint Q/K/V projection without copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import is_batch, storage_key
from rifflemix.mixers._attention.fused_features import fuses_features


def unbind_qkv(heads: Tensor) -> tuple[Tensor, ...]:
    """Split (B, N, P, H, D) into P views (B, N, H, D).

    The kernels of rifflemix write the gradients of the views into one tensor. The backward pass
    then returns this tensor. Other gradients are stacked, which needs a copy.
    """
    if not (heads.requires_grad and fuses_features()):
        return heads.unbind(2)
    parts: tuple[Tensor, ...] = _UnbindQKV.apply(heads)  # type: ignore[no-untyped-call]
    return parts


class _UnbindQKV(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor) -> tuple[Tensor, ...]:
        return heads.unbind(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _joint(grads) if _share_memory(grads) else torch.stack(grads, 2)


def _share_memory(parts: tuple[Tensor, ...]) -> bool:
    """Check that parts (B, N, H, D) are views of one (B, N, P, H, D) without a gradient."""
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


def _joint(parts: tuple[Tensor, ...]) -> Tensor:
    """Return the (B, N, P, H, D) tensor of the views."""
    batch, length, heads, width = parts[0].shape
    row, token, head, feature = parts[0].stride()
    shape = (batch, length, len(parts), heads, width)
    return parts[0].as_strided(shape, (row, token, heads * width, head, feature))
