"""Image sizes and patches for all image models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rifflemix.checks import check_divides, check_floating, check_integer, shown
from rifflemix.errors import bad_argument
from rifflemix.models.base import Model, check_size

Size = int | Sequence[int]


class ImageModel(Model):
    """Base class of models that cut an image into patches.

    Args:
        name: name of the model in error messages.
        image_size: height and width, or one number for square images.
        patch_size: height and width of a patch, or one number; must divide the image.
        in_channels: channels of the image.

    Raises:
        InputError: a size is out of range, or the patch size does not divide the image.
    """

    def __init__(self, name: str, image_size: Size, patch_size: Size, in_channels: int) -> None:
        super().__init__()
        self._title = name
        self.image_size = height, width = size_pair("image_size", image_size)
        self.patch_size = size_pair("patch_size", patch_size)
        self.in_channels = check_integer("in_channels", in_channels, 1)
        for patch, side, length in zip(
            self.patch_size, ("height", "width"), (height, width), strict=True
        ):
            check_divides("patch_size", patch, length, f"the image's {side}")
        self.grid = (height // self.patch_size[0], width // self.patch_size[1])
        self.num_patches = self.grid[0] * self.grid[1]

    def check_images(self, images: Tensor, key_padding_mask: Tensor | None) -> None:
        """Raise InputError for images of another size or a padding mask."""
        check_floating("images", images, "(B, channels, height, width)")
        check_size(self._title, images, (self.in_channels, *self.image_size))
        if key_padding_mask is not None:
            raise bad_argument("key_padding_mask", "None: images have no padding", "a mask")


def size_pair(name: str, size: Any) -> tuple[int, int]:
    """Return height and width from one number or two."""
    sides = [size, size] if not isinstance(size, list | tuple) else list(size)
    if len(sides) != 2:
        raise bad_argument(name, "one number, or height and width", shown(size))
    return check_integer(name, sides[0], 1), check_integer(name, sides[1], 1)
