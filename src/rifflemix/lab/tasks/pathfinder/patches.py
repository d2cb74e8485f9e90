"""Pathfinder's images in square patches, one vector each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rifflemix.lab.tasks.core.base import Sample
from rifflemix.lab.tasks.data_io.shards import ShardedImages
from rifflemix.lab.tasks.images.pixels import cut_patches

PATCH_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class PatchedImages:
    """Images whose tokens are patches.

    Attributes:
        images: their pixels as tokens.
        patch_size: side of a patch; it divides the side of the images.
    """

    images: ShardedImages
    patch_size: int

    def __len__(self) -> int:
        """Number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        """The patches (N, patch_size**2) float32, black 0 and white 1, rows first; the label."""
        pixels, label = self.images[index]
        side = math.isqrt(len(pixels))
        image = pixels.to(torch.float32).div_(255).view(side, side, 1)
        return torch.from_numpy(cut_patches(image.numpy(), self.patch_size)), label

    def digest(self) -> bytes:
        """Hash of the split's pixels and labels, in order."""
        return self.images.digest()
