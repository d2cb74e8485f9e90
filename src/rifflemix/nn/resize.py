"""Images brought to another size."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.errors import bad_argument


class Resize(nn.Module):
    """Bilinear interpolation that keeps the corner pixels where they are.

    Args:
        size: height and width that come out.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, channels, height, width)."""
        return F.interpolate(images, size=self.size, mode="bilinear", align_corners=True)

    def extra_repr(self) -> str:
        """The size, for print(model)."""
        return f"size={self.size}"


def enlarge_grid(table: Tensor, positions: int) -> Tensor:
    """A table of the positions of a square image for a larger one, each taken from the nearest.

    Args:
        table: (N, C), N = S^2, rows of the image first; or N = S^2 + 1, where the first row is
            that of a class token and stays as it is.
        positions: the new N, (k S)^2 or (k S)^2 + 1.

    Returns:
        (positions, C).

    Raises:
        InputError: N or `positions` is another number.

    Source: Sapkota and Bhattarai, Dimension Mixer, the way to Path-X.
    """
    for first in (0, 1):
        before, after = (math.isqrt(max(rows - first, 0)) for rows in (len(table), positions))
        is_square = before**2 + first == len(table) and after**2 + first == positions
        if is_square and 0 < before <= after and after % before == 0:
            return torch.cat((table[:first], _enlarged(table[first:], before, after // before)))
    expected = "(k S)^2 rows for a table of S^2 rows, or one more in both"
    raise bad_argument("positions", expected, f"{positions} for {len(table)}")


def _enlarged(table: Tensor, side: int, times: int) -> Tensor:
    """(side^2, C) -> ((times side)^2, C)."""
    grid = table.reshape(side, side, -1)
    return grid.repeat_interleave(times, 0).repeat_interleave(times, 1).flatten(0, 1)
