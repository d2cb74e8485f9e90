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
    """Root mean square norm with one learned scale for all channels.

    The norm divides each token by the root mean square of its channels.

    Args:
        dim: channels C.
        eps: value added to the mean square.

    Source: Nguyen and Salazar 2019, "Transformers without Tears", equation (5), as implemented in
    MEGA: the learned number starts at 1, and the norm is the mean instead of the sum of squares.
    """

    def __init__(self, dim: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.eps = check_positive("eps", eps)
        self.scalar = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (..., C) -> (..., C); the mean uses at least float32."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        power = wide.square().mean(dim=-1, keepdim=True)
        return x * (self.scalar * torch.rsqrt(power + self.eps)).to(x.dtype)

    def no_weight_decay(self) -> set[str]:
        """Exclude the scale from weight decay."""
        return {"scalar"}

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}"


class TokenNorm(nn.Module):
    """Norm of (B, N, C) tokens that ignores padding.

    Args:
        kind: "layer", "scale" (`ScaleNorm`) or "batch". "batch" normalizes each channel over all
            valid tokens of the batch in training, and with running statistics otherwise. With
            several processes, `torch.nn.SyncBatchNorm.convert_sync_batchnorm` turns "batch" into
            MEGA's "syncbatch".
        dim: channels C.

    Raises:
        InputError: `kind` is unknown.
    """

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        check_choice("norm_kind", kind, NORMS)
        self.kind = kind
        scale = partial(ScaleNorm, eps=1e-5)  # eps of all norms in MEGA's code
        layers: dict[str, Any] = {"layer": nn.LayerNorm, "scale": scale, "batch": nn.BatchNorm1d}
        self.norm: nn.Module = layers[kind](dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Normalize (B, N, C) tokens; mask (B, N), True = padding."""
        if self.kind == "batch" and key_padding_mask is not None and self.training:
            valid = ~key_padding_mask
            return torch.zeros_like(x).masked_scatter(valid.unsqueeze(-1), self.norm(x[valid]))
        y: Tensor = self.norm(x.flatten(0, 1)).view_as(x) if self.kind == "batch" else self.norm(x)
        return y
