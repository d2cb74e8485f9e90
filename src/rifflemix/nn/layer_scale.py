"""A learned factor for each channel of a residual branch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive


class LayerScale(nn.Module):
    """Multiply each channel by a learned factor.

    Args:
        dim: channels C.
        initial: initial value of all factors.

    Source: Touvron et al. 2021, "Going Deeper with Image Transformers", LayerScale.
    """

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        initial = check_positive("initial", initial)
        self.scale = nn.Parameter(torch.full((check_integer("dim", dim, 1),), initial))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        return x * self.scale
