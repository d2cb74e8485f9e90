"""Norms of token vectors, by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive
from rifflemix.errors import check_choice

NORMS = ("layer", "scale", "batch")


class ScaleNorm(nn.Module):
    """Each token over the root mean square of its channels, times one learned number.

    Args:
        dim: channels C.
        eps: added to the mean square.

    Source: Nguyen and Salazar 2019, "Transformers without Tears", equation (5), in the form of
    MEGA's code, whose learned number starts at 1 and which takes the mean of the squares.
    """

    def __init__(self, dim: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.eps = check_positive("eps", eps)
        self.scalar = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C); the mean is taken in float32 or wider."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        power = wide.square().mean(dim=-1, keepdim=True)
        return x * (self.scalar * torch.rsqrt(power + self.eps)).to(x.dtype)

    def no_weight_decay(self) -> set[str]:
        """The scale of a norm is not decayed."""
        return {"scalar"}

    def extra_repr(self) -> str:
        """The settings, for print(model)."""
        return f"dim={self.dim}, eps={self.eps}"


class TokenNorm(nn.Module):
    """A norm of (B, N, C) tokens that leaves padding out of account.

    Args:
        kind: "layer", "scale" (`ScaleNorm`) or "batch": each channel over all valid tokens of the
            batch while training, over running statistics otherwise. With several processes,
            `torch.nn.SyncBatchNorm.convert_sync_batchnorm` makes "batch" MEGA's "syncbatch".
        dim: channels C.

    Raises:
        InputError: another kind.
    """

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        check_choice("norm_kind", kind, NORMS)
        self.kind = kind
        scale = partial(ScaleNorm, eps=1e-5)  # as MEGA's code makes all of its norms
        layers: dict[str, Any] = {"layer": nn.LayerNorm, "scale": scale, "batch": nn.BatchNorm1d}
        self.norm: nn.Module = layers[kind](dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """(B, N, C) and a mask (B, N) bool, True = padding -> (B, N, C)."""
        if self.kind == "batch" and key_padding_mask is not None and self.training:
            valid = ~key_padding_mask
            return torch.zeros_like(x).masked_scatter(valid.unsqueeze(-1), self.norm(x[valid]))
        y: Tensor = self.norm(x.flatten(0, 1)).view_as(x) if self.kind == "batch" else self.norm(x)
        return y
