"""Conversion of images to the inputs of samples: tokens, patches or whole images."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.files import user_path
from rifflemix.lab.tasks.core.arrays import NAME, bad_input, listed, plain_array
from rifflemix.lab.tasks.images.image_files import opened_image, read_image


@dataclass(frozen=True)
class PixelScale:
    """Normalization of pixel values: (value / top - mean) / std, per channel."""

    top: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class PixelInputs:
    """Images of one size.

    Attributes:
        height, width: Size of an image.
        scale: Normalization of patches and whole images, with one mean per channel.
        patch_size: Side of a patch. Patches are vectors of patch_size**2 * channels floats, rows of
            the patch first and channels last. None gives whole images.
        as_tokens: True if pixels are token ids. Images are then gray and `patch_size` is 1.
        largest: Largest pixel value, an integer. None if pixels are any floats.
        crop_share: Share of the shorter side to keep from image files.
    """

    kind: ClassVar[str] = "pixels"
    height: int
    width: int
    scale: PixelScale
    patch_size: int | None
    as_tokens: bool = False
    largest: int | None = 255
    crop_share: float = 1.0

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert arrays (height, width) or (height, width, channels), or image files.

        Raises:
            InputError: An image has another shape or type of pixels, or a file cannot be read.
        """
        images = [self._image(image, at) for at, image in enumerate(listed(raw, "images"))]
        return list(self.convert(np.stack(images)).unbind())

    def convert(self, images: NDArray[Any]) -> Tensor:
        """Convert images (B, height, width) or (B, height, width, channels).

        Returns:
            (B, N) int64 pixels, (B, N, F) float32 patches, or whole images (B, channels, height,
            width) in float32. Pixels and patches are in row order.
        """
        if self.as_tokens:
            return torch.from_numpy(images.reshape(len(images), -1).astype(np.int64))
        planes = self._planes(images.reshape(*images.shape[:3], self._channels))
        if self.patch_size is None:
            return torch.from_numpy(planes)
        return torch.from_numpy(cut_patches(planes.transpose(0, 2, 3, 1), self.patch_size))

    @property
    def _channels(self) -> int:
        return len(self.scale.mean)

    def _planes(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        """Normalize (B, height, width, channels) pixels to (B, channels, height, width)."""
        mean, std = np.asarray([self.scale.mean, self.scale.std], np.float32)[:, :, None, None]
        planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32)
        planes /= np.float32(self.scale.top)
        planes -= mean
        planes /= std
        return planes

    def _image(self, raw: Any, number: int) -> NDArray[Any]:
        """Return one image (height, width, channels)."""
        if isinstance(raw, str | PathLike):
            return self._read(user_path(NAME, raw))
        image = plain_array(raw)
        shape = (self.height, self.width, self._channels)
        if image.shape != shape and not (self._channels == 1 and image.shape == shape[:2]):
            expected = shape[:2] if self._channels == 1 else shape
            raise bad_input(f"an image of shape {expected} or the path of a file",
                            f"shape {image.shape}", number)  # fmt: skip
        self._check_pixels(image, number)
        return image.reshape(shape)

    def _check_pixels(self, image: NDArray[Any], number: int) -> None:
        if self.largest is None:
            if image.dtype.kind not in "biuf" or not np.isfinite(image).all():
                raise bad_input("finite numbers", image.dtype, number)
            return
        if image.dtype.kind not in "biu":
            raise bad_input(f"whole pixel values from 0 to {self.largest}", image.dtype, number)
        low, high = int(image.min()), int(image.max())
        if low < 0 or high > self.largest:
            got = low if low < 0 else high
            raise bad_input(f"pixel values from 0 to {self.largest}", got, number)

    def _read(self, path: Path) -> NDArray[Any]:
        if self.largest is None or self._channels not in (1, 3):
            raise InputError(
                f"{path}: expected an array, got an image file; the model was trained on floats or "
                f"on {self._channels} channels, so convert the file first"
            )
        color = "gray" if self._channels == 1 else "rgb"
        if self.height == self.width:
            image = read_image(path, self.height, self.crop_share, color)
        else:
            image = _read_exactly(path, (self.width, self.height), color)
        if self.largest != 255:
            image = np.round(image.astype(np.float64) * (self.largest / 255)).astype(np.uint8)
        return image.reshape(self.height, self.width, self._channels)


def _read_exactly(path: Path, size: tuple[int, int], color: str) -> NDArray[np.uint8]:
    """Read an image file of a given width and height."""
    with opened_image(path) as image:
        if image.size != size:
            wanted, got = (" x ".join(map(str, of)) for of in (size, image.size))
            raise InputError(f"{path}: expected {wanted} pixels (width x height), got {got}")
        return np.asarray(image.convert("RGB" if color == "rgb" else "L"), dtype=np.uint8)


def cut_patches(images: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Cut images into square patches, in row order.

    Args:
        images: (..., height, width, channels). Height and width are multiples of `size`.
        size: side of a patch.

    Returns:
        Patches (..., N, size**2 * channels).
    """
    *several, height, width, channels = images.shape
    grid = images.reshape(*several, height // size, size, width // size, size, channels)
    return grid.swapaxes(-3, -4).reshape(*several, -1, size * size * channels)
