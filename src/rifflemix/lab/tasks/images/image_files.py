"""Decoding image files with Pillow: one size, checked before anything large is unpacked."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError
from rifflemix.lab.tasks.data_io.bounded import read_bytes
from rifflemix.lab.tasks.data_io.files import damaged, reading

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
"""Formats that are read, by Pillow's names; a file's content decides, not its name."""

SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif",
    ".tiff", ".webp", ".gif",
)  # fmt: skip
"""Endings, in any case, of files that are taken for images whatever they hold."""

# Those of BMP and PPM are two letters, with which texts begin too, and TIFF's are raw photographs'.
_SIGNATURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF.{4}WEBP", re.DOTALL)

# The largest image of ImageNet has 61 million pixels.
MOST_PIXELS = 1 << 26
_MOST_BYTES = 1 << 28
_BITS_PER_SAMPLE = 258
_PPM_MOST = re.compile(rb"P[36](?:(?:\s|#[^\r\n]*[\r\n])+(\d+)){3}")
_EIGHT_BIT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")


@dataclass(frozen=True)
class FileMaker:
    """Decodes the images of a list; see `ImageMaker`.

    Attributes:
        root: folder of all paths.
        paths: of the images, below `root`.
        labels: of each.
        size: height and width of what is made.
        share: of the shorter side that is kept.
        color: "rgb" or "gray".
    """

    root: Path
    paths: Sequence[str]
    labels: Sequence[int]
    size: int
    share: float
    color: str

    def __call__(self, first: int, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """Images (count, size, size[, 3]) and labels (count,) from number `first` on."""
        chosen = slice(first, first + count)
        images = [
            read_image(self.root / path, self.size, self.share, self.color)
            for path in self.paths[chosen]
        ]
        return np.stack(images), np.array(self.labels[chosen], dtype=np.uint16)


def read_image(path: Path, size: int, share: float, color: str) -> NDArray[np.uint8]:
    """The middle square of an image, resized (bicubic, antialiased).

    Args:
        path: the file; its orientation tag is not applied, transparency is dropped.
        size: height and width of the result.
        share: how much of the shorter side the square has, over 0 and at most 1.
        color: "rgb" or "gray" (ITU-R 601 luma).

    Returns:
        (size, size, 3), or (size, size) gray, uint8.

    Raises:
        InputError: the file is missing, damaged, no image of `FORMATS`, has over `MOST_PIXELS`
            pixels or over 8 bits a channel, or Pillow is not there.
    """
    with opened_image(path) as image:
        return _square(image, size, share, color)


def begins_as_image(path: Path) -> bool:
    """Whether a file, whatever its name, begins as JPEG, PNG, GIF or WebP files do.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return _SIGNATURE.match(stream.read(12)) is not None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


@contextmanager
def opened_image(
    path: Path, formats: tuple[str, ...] = FORMATS, most_bytes: int = _MOST_BYTES
) -> Iterator[Image.Image]:
    """An image file, opened and checked; Pillow decodes its pixels when they are asked for.

    Raises:
        InputError: the file is missing, damaged, no image of `formats`, has over `most_bytes`
            bytes, over `MOST_PIXELS` pixels or over 8 bits a channel, or Pillow is not there.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(
            "to read image files, install Pillow: pip install 'rifflemix[images]'"
        ) from None
    with reading(path), warnings.catch_warnings():
        # Of pictures that are large or have odd metadata: what matters is checked here.
        warnings.simplefilter("ignore")
        content = read_bytes(path, most_bytes)
        try:
            with Image.open(io.BytesIO(content), formats=formats) as image:
                _check(path, image, content)
                yield image
        except Image.DecompressionBombError:
            raise _too_large(path, "more") from None
        except UnidentifiedImageError:
            names = " or ".join(filter(None, (", ".join(formats[:-1]), formats[-1])))
            raise damaged(path, f"no {names} image") from None


def _check(path: Path, image: Image.Image, content: bytes) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise _too_large(path, f"{width} x {height}")
    bits = _bits(path, image, content)
    if bits > 8 or image.mode not in _EIGHT_BIT:
        got = bits if bits > 8 else f"pixels of kind {image.mode}"
        raise InputError(f"{path}: expected at most 8 bits a channel, got {got}; convert it first")


def _bits(path: Path, image: Image.Image, content: bytes) -> int:
    """Bits of a channel in the file: Pillow tells only what it would cut them to."""
    from PIL.TiffImagePlugin import TiffImageFile

    if image.format == "PNG":
        if content[12:16] != b"IHDR":
            raise damaged(path, "it does not begin with the header of PNG")
        return content[24]
    if isinstance(image, TiffImageFile):
        return int(max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))))
    largest = _PPM_MOST.match(content) if image.format == "PPM" else None
    return int(largest[1]).bit_length() if largest else 8


def _too_large(path: Path, got: str) -> InputError:
    return InputError(
        f"{path}: expected an image of at most {MOST_PIXELS:,} pixels, got {got}; make it smaller, "
        "or take it away"
    )


def _square(image: Image.Image, size: int, share: float, color: str) -> NDArray[np.uint8]:
    from PIL import Image

    width, height = image.size
    side = share * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    # Palettes and bits cannot be resized, and transparent colors would be mixed by their weight.
    pixels = image if image.mode in ("L", "RGB") else image.convert("RGBA").convert("RGB")
    square = pixels.resize(
        (size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side)
    )
    return np.asarray(square.convert("RGB" if color == "rgb" else "L"), dtype=np.uint8)
