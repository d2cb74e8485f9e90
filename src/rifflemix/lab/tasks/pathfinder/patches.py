"""Pathfinder images as vectors of square patches."""

from __future__ import annotations

from dataclasses import dataclass

from rifflemix.lab.tasks.core.base import Sample
from rifflemix.lab.tasks.data_io.shards import ShardedImages
from rifflemix.lab.tasks.images.pixel_inputs import PixelInputs

PATCH_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class PatchedImages:
    """Split with patch vectors instead of pixel tokens.

    Attributes:
        images: split with pixels as tokens.
        inputs: conversion of the pixels to patches.
    """

    images: ShardedImages
    inputs: PixelInputs

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        """Return the patches of an image, and its label.

        The patches are (N, patch_size**2) float32 in row order, with black 0 and white 1.
        """
        pixels, label = self.images[index]
        shape = (1, self.inputs.height, self.inputs.width)
        return self.inputs.convert(pixels.numpy().reshape(shape))[0], label

    def digest(self) -> bytes:
        return self.images.digest()
