"""Pathfinder images as vectors of square patches."""

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
    """Split with patch vectors instead of pixel tokens.

    Attributes:
        images: split with pixels as tokens.
        patch_size: side of a patch. It must divide the side of the images.
    """

    images: ShardedImages
    patch_size: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        """Return the patches of an image, and its label.

        The patches are (N, patch_size**2) float32 in row order, with black 0 and white 1.
        """
        pixels, label = self.images[index]
        side = math.isqrt(len(pixels))
        image = pixels.to(torch.float32).div_(255).view(side, side, 1)
        return torch.from_numpy(cut_patches(image.numpy(), self.patch_size)), label

    def digest(self) -> bytes:
        return self.images.digest()
