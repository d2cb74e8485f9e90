"""Images brought to another size."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


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
