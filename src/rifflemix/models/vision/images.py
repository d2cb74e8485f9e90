"""Base classes of image models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rifflemix.checks import check_divides, check_floating, check_integer, shown
from rifflemix.errors import bad_argument
from rifflemix.models.base import Model

Size = int | Sequence[int]


class ImageModel(Model):
    """Model of images of one size: `embed`, then `blocks`, then `classify`.

    Args:
        name: name of the model in error messages.
        image_size: height and width, or one number for square images.
        in_channels: channels of the image.

    Raises:
        InputError: a size is out of range.
    """

    blocks: nn.ModuleList
    head: nn.Linear

    def __init__(self, name: str, image_size: Size, in_channels: int) -> None:
        super().__init__()
        self._title = name
        self.image_size = size_pair("image_size", image_size)
        self.in_channels = check_integer("in_channels", in_channels, 1)

    def embed(self, images: Tensor) -> Tensor:
        """Convert images to the input of the blocks.

        Args:
            images: (B, in_channels, height, width).

        Returns:
            Input of the first block; (B, N, C) in models with patches.
        """
        raise NotImplementedError

    def classify(self, x: Tensor) -> Tensor:
        """Compute logits from the output of the blocks.

        Args:
            x: output of the last block.

        Returns:
            (B, num_classes).
        """
        return self.head(x.flatten(1))

    def forward(self, images: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Compute the logits of each image.

        Args:
            images: (B, in_channels, height, width).
            key_padding_mask: must be None, because images have no padding.

        Returns:
            (B, num_classes).

        Raises:
            InputError: the shape or dtype of the images is wrong, or a mask is given.
        """
        check_floating("images", images, "(B, channels, height, width)")
        expected = (self.in_channels, *self.image_size)
        if images.dim() != 4 or tuple(images.shape[1:]) != expected:
            layout = f"images of shape (B, {', '.join(map(str, expected))})"
            raise bad_argument(self._title, layout, tuple(images.shape))
        if key_padding_mask is not None:
            raise bad_argument("key_padding_mask", "None: images have no padding", "a mask")
        x = self.embed(images)
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.classify(x)


class PatchModel(ImageModel):
    """Image model that cuts each image into patches.

    Args:
        name: name of the model in error messages.
        image_size: height and width, or one number for square images.
        patch_size: height and width of a patch, or one number; must divide the (resized) image.
        in_channels: channels of the image.
        resize: height and width after resizing, or None.

    Raises:
        InputError: a size is out of range, or the patch size does not divide the image.
    """

    def __init__(
        self,
        name: str,
        image_size: Size,
        patch_size: Size,
        in_channels: int,
        resize: Size | None = None,
    ) -> None:
        super().__init__(name, image_size, in_channels)
        sides = self.image_size if resize is None else size_pair("resize", resize)
        self.patch_size = size_pair("patch_size", patch_size)
        for patch, side, length in zip(self.patch_size, ("height", "width"), sides, strict=True):
            check_divides("patch_size", patch, length, f"the image's {side}")
        self.grid = (sides[0] // self.patch_size[0], sides[1] // self.patch_size[1])
        self.num_patches = self.grid[0] * self.grid[1]


def size_pair(name: str, size: Any) -> tuple[int, int]:
    """Return height and width from one number or two."""
    sides = [size, size] if not isinstance(size, list | tuple) else list(size)
    if len(sides) != 2:
        raise bad_argument(name, "one number, or height and width", shown(size))
    return check_integer(name, sides[0], 1), check_integer(name, sides[1], 1)
