"""CIFAR-10 as 1,024 gray pixels (Image of the Long Range Arena), patches or whole images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import check_choice
from rifflemix.lab.tasks.core.base import Progress, Request, Task, check_one_of
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source
from rifflemix.lab.tasks.data_io.hub import HubData, hub_source
from rifflemix.lab.tasks.data_io.safe_readers import read_npz
from rifflemix.lab.tasks.images.cifar import BinaryVersion, channels_last, holds_pickles
from rifflemix.lab.tasks.images.parts import (
    PARTS,
    carved_task,
    check_parts,
    decode_npz_parts,
    hub_parts,
)
from rifflemix.lab.tasks.images.pixel_inputs import PixelScale
from rifflemix.lab.tasks.images.pixels import check_layout, pixel_shapes, scale_of

_GRAY = "cifar10_gray.npz.xz"
_RGB = "cifar10_rgb.npz.xz"
_APPROXIMATE = "172 of its 60,000 images are JPEG approximations"
_HUB = HubData(
    "uoft-cs/cifar10",
    "0b2714987fa478483af9968de7c934580d0bb9a2",
    "plain_text",
    {
        "train": "8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883",
        "test": "841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de",
    },
)
_BINARY = BinaryVersion(
    "CIFAR-10",
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    {
        "train": {f"data_batch_{number}.bin": 10_000 for number in range(1, 6)},
        "test": {"test_batch.bin": 10_000},
    },
    label_bytes=1,
)
_SHAPES = {"gray": (32, 32), "rgb": (32, 32, 3)}
# Pixel mean and standard deviation of the 50,000 training images.
_SCALES = {
    "gray": PixelScale(top=255, mean=(0.4809,), std=(0.2392,)),
    "rgb": PixelScale(top=255, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
}
# Average standard deviation within an image, as in much released code.
_PER_IMAGE = PixelScale(top=255, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
# Number of images to convert at a time.
_PIECE = 5000


class Image(FileTask):
    """CIFAR-10 from its binary version, .npz.xz archives or the Hugging Face hub."""

    card = TaskCard(
        name="image",
        title="CIFAR-10",
        source="Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
        licence="none stated",
        description=(
            "60,000 32x32 images, 10 classes. Gray with patch_size 1: 1,024 tokens with 256 "
            "levels, the Long Range Arena's Image task; patch_size 2 to 16, or color rgb: patches "
            "as vectors; layout image: whole images. Gray is ITU-R 601 luma, "
            "(19595 R + 38470 G + 7471 B + 32768) >> 16. Color is divided by the standard "
            "deviation of all pixels, or with statistics per_image by that within an image, on "
            "average, as much released code has it; statistics imagenet: mean and deviation of "
            "ImageNet's images, for weights that were trained on those."
        ),
        needs_data=True,
        is_image=True,
        options={
            "patch_size": 1,
            "color": "gray",
            "layout": "sequence",
            "augment": "none",
            "statistics": "data",
        },
        budget=Budget(evaluations=2),
        shapes=partial(pixel_shapes, classes=10, channels=3, side=32),
    )

    get_it = f"{_BINARY.archive} from https://www.cs.toronto.edu/~kriz/cifar.html"

    def check(self, options: Options) -> None:
        check_one_of(options, "patch_size", (1, 2, 4, 8, 16))
        check_choice("color", options["color"], _SCALES)
        check_layout(options)
        _scale(options)

    def key(self, options: Options) -> tuple[object, ...]:
        return (options["color"],)

    def forms(self, options: Options) -> Sequence[Form]:
        """List the binary version, unpacked or packed, and the .npz.xz archives.

        The gray archive is listed only for gray images.
        """
        color = str(options["color"])
        binary = _BINARY.forms(partial(_colored_parts, color), (_BINARY.folder, "."))
        gray = Form(_GRAY, {"all": _GRAY}, _decode_gray, note=_APPROXIMATE)
        rgb = Form(_RGB, {"all": _RGB}, partial(_decode_rgb, color), note=_APPROXIMATE)
        return (*binary, rgb) if color == "rgb" else (*binary, gray, rgb)

    def why_not(self, data_dir: Path, options: Options) -> str:
        if options["color"] == "rgb" and (data_dir / _GRAY).is_file():
            gray = f"{_GRAY} there has no color, and {_RGB} is missing"
        else:
            gray = ""
        return holds_pickles(data_dir, "cifar-10-batches-py", "cifar-10-python") or gray

    def remote_source(self, options: Options) -> Source:
        color = str(options["color"])
        explain = partial(self.missing, options)
        return hub_source(_HUB, partial(_decode_hub, color), explain, color)

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        scale = _scale(request.options)
        return carved_task(self.card, request.options, arrays, scale, source.description, _CLASSES)


def _scale(options: Options) -> PixelScale:
    color = str(options["color"])
    return scale_of(options, _SCALES[color], _PER_IMAGE if color == "rgb" else None)


def _colored_parts(
    color: str, parts: Mapping[str, tuple[NDArray[np.uint8], NDArray[Any]]], name: str
) -> Arrays:
    colored = {
        part: (_colored(images, color), y.reshape(-1)) for part, (images, y) in parts.items()
    }
    return check_parts(name, colored, _SHAPES[color])


def _decode_gray(paths: Paths, progress: Progress) -> Arrays:
    progress(f"decoding {_GRAY}", 0, None)
    return decode_npz_parts(paths["all"], _SHAPES["gray"])


def _decode_rgb(color: str, paths: Paths, progress: Progress) -> Arrays:
    """Decode images stored as differences along plane, row and column.

    The differences are modulo 256.
    """
    path = paths["all"]
    progress(f"decoding {path.name}", 0, None)
    content = read_npz(path)
    stored = {part: (content.get(f"{part}_x_diff"), content.get(f"{part}_y")) for part in PARTS}
    differences = check_parts(str(path), stored, (3, 32, 32))
    parts: dict[str, tuple[object, object]] = {}
    for part in PARTS:
        every = differences[f"{part}_images"]
        images = np.empty((len(every), *_SHAPES[color]), dtype=np.uint8)
        for start in range(0, len(every), _PIECE):
            planes = every[start : start + _PIECE]
            for axis in (1, 2, 3):
                planes = planes.cumsum(axis, dtype=np.uint8)
            images[start : start + _PIECE] = _colored(channels_last(planes), color)
        parts[part] = images, differences[f"{part}_labels"]
    return check_parts(str(path), parts, _SHAPES[color])


def _decode_hub(color: str, splits: Any, progress: Progress) -> Arrays:
    parts = hub_parts(splits, "CIFAR-10", "img", "label", progress)
    return _colored_parts(color, parts, _HUB.repository)


def _colored(images: NDArray[np.uint8], color: str) -> NDArray[np.uint8]:
    """Convert RGB images to `color`.

    Gray is (M, 32, 32) ITU-R 601 luma with rounding.
    """
    if color == "rgb":
        return images
    # Convert in pieces: four-byte copies of the whole set need over 700 MB.
    gray = np.empty(images.shape[:3], dtype=np.uint8)
    for start in range(0, len(images), _PIECE):
        red, green, blue = np.moveaxis(images[start : start + _PIECE].astype(np.uint32), -1, 0)
        gray[start : start + _PIECE] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return gray
