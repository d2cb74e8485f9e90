"""Images brought to another size."""

from __future__ import annotations

import math

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


def enlarge_grid(table: Tensor, places: int) -> Tensor:
    """A table of the places of a square image for a larger one, each taken from the nearest.

    Args:
        table: (N, C), N a square number, rows of the image first.
        places: the new N.

    Returns:
        (places, C).

    Raises:
        InputError: N is no square number, or `places` not that of a multiple of its root.

    Source: Sapkota and Bhattarai, Dimension Mixer, the way to Path-X.
    """
    before, after = math.isqrt(len(table)), math.isqrt(places)
    if before**2 != len(table) or after**2 != places or after % before:
        expected = "(k S)^2 rows for a table of S^2 rows"
        raise bad_argument("places", expected, f"{places} for {len(table)}")
    times = after // before
    grid = table.reshape(before, before, -1)
    return grid.repeat_interleave(times, 0).repeat_interleave(times, 1).flatten(0, 1)
