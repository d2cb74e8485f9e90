"""Decode image files to one size with Pillow, and convert raw images to inputs."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.files import user_path
from rifflemix.lab.tasks.core.arrays import NAME, bad_input, listed, plain_array
from rifflemix.lab.tasks.data_io.files import damaged, reading
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes

if TYPE_CHECKING:
    from PIL import Image


FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
"""Supported formats, by Pillow's names. The content of a file counts, not its name."""

SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif",
    ".tiff", ".webp", ".gif",
)  # fmt: skip
"""Suffixes of image files, in any case. The listing does not check their content."""

# BMP and PPM are absent because text files can begin with their two-letter signatures. TIFF is
# absent because raw photographs share its signature.
_SIGNATURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF.{4}WEBP", re.DOTALL)

_BITS_PER_SAMPLE = 258
_PPM_MOST = re.compile(rb"P[36](?:(?:\s|#[^\r\n]*[\r\n])+(\d+)){3}")
_EIGHT_BIT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")


@dataclass(frozen=True)
class FileMaker:
    """Decoder of listed image files; an `ImageMaker`.

    Attributes:
        root: folder that contains all paths.
        paths: paths of the images below `root`.
        labels: label of each image.
        size: height and width of the decoded images.
        share: share of the shorter side to keep.
        color: "rgb" or "gray".
    """

    root: Path
    paths: Sequence[str]
    labels: Sequence[int]
    size: int
    share: float
    color: str

    def __call__(self, first: int, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """Return `count` images (count, size, size[, 3]) and labels (count,) from `first` on."""
        chosen = slice(first, first + count)
        images = [
            read_image(self.root / path, self.size, self.share, self.color)
            for path in self.paths[chosen]
        ]
        return np.stack(images), np.array(self.labels[chosen], dtype=np.uint16)


def read_image(path: Path, size: int, share: float, color: str) -> NDArray[np.uint8]:
    """Read the middle square of an image and resize it.

    Resizing is bicubic and antialiased.

    Args:
        path: path of the file. Its orientation tag and transparency are ignored.
        size: height and width of the result.
        share: side of the square as a share of the shorter side, over 0 and at most 1.
        color: "rgb" or "gray" (ITU-R 601 luma).

    Returns:
        uint8 image: (size, size, 3) for "rgb", (size, size) for "gray".

    Raises:
        InputError: Pillow is not installed, or the file is missing, damaged, in another format or
            larger than Pillow decodes, or a channel has more than 8 bits.
    """
    with opened_image(path) as image:
        return _square(image, size, share, color)


def begins_as_image(path: Path) -> bool:
    """Check for the signature of a JPEG, PNG, GIF or WebP file.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return _SIGNATURE.match(stream.read(12)) is not None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


@contextmanager
def opened_image(path: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """Open and check an image file. Pillow decodes the pixels on first access.

    Raises:
        InputError: Pillow is not installed, or the file is missing, damaged, in another format or
            larger than Pillow decodes, or a channel has more than 8 bits.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(
            "to read image files, install Pillow: pip install 'rifflemix[images]'"
        ) from None
    with reading(path), warnings.catch_warnings():
        # Pillow warns about large images and odd metadata. `_check` covers the relevant cases.
        warnings.simplefilter("ignore")
        content = read_bytes(path)
        try:
            with Image.open(io.BytesIO(content), formats=formats) as image:
                _check(path, image, content)
                yield image
        except Image.DecompressionBombError:
            most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
            raise InputError(
                f"{path}: expected an image of at most {most:,} pixels (the limit of Pillow), "
                "got more. Resize it."
            ) from None
        except UnidentifiedImageError:
            names = " or ".join(filter(None, (", ".join(formats[:-1]), formats[-1])))
            raise damaged(path, f"no {names} image") from None


def _check(path: Path, image: Image.Image, content: bytes) -> None:
    bits = _bits(path, image, content)
    if bits > 8 or image.mode not in _EIGHT_BIT:
        got = bits if bits > 8 else f"pixels of kind {image.mode}"
        raise InputError(f"{path}: expected at most 8 bits a channel, got {got}; convert it first")


def _bits(path: Path, image: Image.Image, content: bytes) -> int:
    """Return the bits per channel in the file. Pillow reports only the reduced depth."""
    from PIL.TiffImagePlugin import TiffImageFile

    if image.format == "PNG":
        if content[12:16] != b"IHDR":
            raise damaged(path, "it does not begin with the header of PNG")
        return content[24]
    if isinstance(image, TiffImageFile):
        return int(max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))))
    largest = _PPM_MOST.match(content) if image.format == "PPM" else None
    return int(largest[1]).bit_length() if largest else 8


def _square(image: Image.Image, size: int, share: float, color: str) -> NDArray[np.uint8]:
    from PIL import Image

    width, height = image.size
    side = share * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    # Pillow cannot resize palettes and bits, and would weight colors by their transparency.
    pixels = image if image.mode in ("L", "RGB") else image.convert("RGBA").convert("RGB")
    square = pixels.resize(
        (size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side)
    )
    return np.asarray(square.convert("RGB" if color == "rgb" else "L"), dtype=np.uint8)


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
