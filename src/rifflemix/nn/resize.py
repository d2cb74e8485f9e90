"""Resizing of images and of position tables."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.errors import bad_argument


class Resize(nn.Module):
    """Resize images by bilinear interpolation with aligned corner pixels.

    Args:
        size: height and width of the output.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels, H, W) to (B, channels, height, width)."""
        return F.interpolate(images, size=self.size, mode="bilinear", align_corners=True)

    def extra_repr(self) -> str:
        return f"size={self.size}"


def enlarge_grid(table: Tensor, positions: int) -> Tensor:
    """Enlarge the position table of a square image by nearest-neighbor interpolation.

    Args:
        table: (N, C) in row-major order of the image, with N = S^2. Or N = S^2 + 1: the first
            entry then belongs to a class token and does not change.
        positions: new number of entries, (k S)^2 or (k S)^2 + 1.

    Returns:
        (positions, C).

    Raises:
        InputError: N or `positions` has a different form.

    Source: Sapkota and Bhattarai, Dimension Mixer, the steps to Path-X.
    """
    for first in (0, 1):
        before, after = (math.isqrt(max(rows - first, 0)) for rows in (len(table), positions))
        is_square = before**2 + first == len(table) and after**2 + first == positions
        if is_square and 0 < before <= after and after % before == 0:
            return torch.cat((table[:first], _enlarged(table[first:], before, after // before)))
    expected = "(k S)^2 rows for a table of S^2 rows, or one more in both"
    raise bad_argument("positions", expected, f"{positions} for {len(table)}")


def _enlarged(table: Tensor, side: int, times: int) -> Tensor:
    """Map (side^2, C) to ((times side)^2, C)."""
    grid = table.reshape(side, side, -1)
    return grid.repeat_interleave(times, 0).repeat_interleave(times, 1).flatten(0, 1)
