"""Fourier features of a token's position in an image."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive
from rifflemix.errors import bad_argument


class FourierPositions(nn.Module):
    """Sines and cosines of row and column, followed by a learned 1x1 convolution.

    Rows and columns count from 1, and the last position is scaled to 2 pi. Each axis gives
    `features` numbers, sine and cosine in turn. Their frequencies fall from 1 towards
    1 / `temperature`. The features of the rows come first.

    Args:
        dim: channels C.
        features: features per axis, an even number.
        temperature: ratio of the longest wavelength to the shortest.

    Raises:
        InputError: an argument is out of range.

    Source: El-Nouby et al. 2021 (XCiT) and their released code, after Vaswani et al. 2017, section
    3.5.
    """

    def __init__(self, dim: int, *, features: int = 32, temperature: float = 10000.0) -> None:
        super().__init__()
        self.features = check_integer("features", features, 2)
        if features % 2:
            raise bad_argument("features", "an even number", features)
        self.temperature = check_positive("temperature", temperature)
        self.proj = nn.Conv2d(2 * self.features, check_integer("dim", dim, 1), kernel_size=1)

    def forward(self, height: int, width: int) -> Tensor:
        """Compute the embedding of every grid position, (1, C, height, width)."""
        rows, columns = self._axis(height), self._axis(width)
        grid = torch.cat(
            (
                rows[:, None].expand(height, width, self.features),
                columns[None].expand(height, width, self.features),
            ),
            dim=2,
        )
        weight = self.proj.weight
        embedding: Tensor = self.proj(grid.permute(2, 0, 1)[None].to(weight.dtype))
        return embedding

    def _axis(self, length: int) -> Tensor:
        """Compute the features of one axis, (length, features) float32."""
        device = self.proj.weight.device
        positions = torch.arange(1, length + 1, dtype=torch.float32, device=device)
        # The offset of the published code, so that published weights see their features.
        positions = positions / (length + 1e-6) * (2 * math.pi)
        exponents = torch.arange(0, self.features, 2, dtype=torch.float32, device=device)
        angles = positions[:, None] / self.temperature ** (exponents / self.features)
        return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)
