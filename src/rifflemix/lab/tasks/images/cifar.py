"""CIFAR-100, CIFAR-10 (task image of the Long Range Arena), and their binary version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import check_choice
from rifflemix.lab.tasks.core.base import Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_one_of
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.data_io.file_task import (
    FileTask,
    Form,
    HubData,
    Options,
    Paths,
    hub_source,
)
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, damaged, reading
from rifflemix.lab.tasks.data_io.safe_readers import read_npz, read_tar_members
from rifflemix.lab.tasks.images.image_files import PixelScale
from rifflemix.lab.tasks.images.parts import (
    PARTS,
    carved_task,
    check_parts,
    decode_npz_parts,
    hub_parts,
)
from rifflemix.lab.tasks.images.pixels import check_layout, pixel_shapes, scale_of

Finish = Callable[[Mapping[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]], str], Arrays]
"""Function from parts and the name of their source to arrays.

Each part has images (M, 32, 32, 3) and labels (M, L).
"""


@dataclass(frozen=True)
class BinaryVersion:
    """The binary version of a data set.

    Attributes:
        title: name of the data set.
        folder: name of the folder with the files.
        archive: name of the published archive that contains the folder.
        files: number of records by part and file name.
        label_bytes: number of labels L per record, one byte each.
    """

    title: str
    folder: str
    archive: str
    files: Mapping[str, Mapping[str, int]]
    label_bytes: int

    def forms(self, finish: Finish, folders: Sequence[str]) -> tuple[Form, Form]:
        """List both formats: the files in one of `folders`, and the archive."""
        files = {name: name for names in self.files.values() for name in names}
        read = partial(self._read_files, finish)
        return (
            Form(self.folder, files, read, folders, looked_for=f"{self.folder}/"),
            Form(self.archive, {"all": self.archive}, partial(self._read_archive, finish)),
        )

    def _read_files(self, finish: Finish, paths: Paths, progress: Progress) -> Arrays:
        progress(f"decoding {self.title}", 0, None)
        content = {}
        for name, path in paths.items():
            with reading(path):
                content[name] = self._records(path, name, path.read_bytes())
        return self._finish(finish, content, next(iter(paths.values())).parent)

    def _read_archive(self, finish: Finish, paths: Paths, progress: Progress) -> Arrays:
        path = paths["all"]
        progress(f"decoding {path.name}", 0, None)
        wanted = {f"{self.folder}/{name}": name for names in self.files.values() for name in names}
        content = {
            wanted[member]: self._records(path, wanted[member], records)
            for member, records in read_tar_members(path, wanted.__contains__)
        }
        for member, name in wanted.items():
            if name not in content:
                raise damaged(path, f"{member} is missing in it")
        return self._finish(finish, content, path)

    def _records(self, path: Path, name: str, content: bytes) -> Arrays:
        """Decode the images and labels of one file.

        A record has its labels first, then a red, a green and a blue plane.
        """
        count = next(names[name] for names in self.files.values() if name in names)
        size = self.label_bytes + 3 * 32 * 32
        if len(content) != count * size:
            raise damaged(path, f"it has {len(content)} bytes, expected {count * size}")
        rows = np.frombuffer(content, dtype=np.uint8).reshape(count, size)
        labels, planes = rows[:, : self.label_bytes], rows[:, self.label_bytes :]
        return {"images": channels_last(planes), "labels": labels}

    def _finish(self, finish: Finish, content: Mapping[str, Arrays], path: Path) -> Arrays:
        parts = {}
        for part, names in self.files.items():
            images, labels = (
                np.concatenate([content[name][kind] for name in names])
                for kind in ("images", "labels")
            )
            parts[part] = images, labels
        return finish(parts, str(path))


def channels_last(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert red, green and blue planes to (M, 32, 32, 3).

    Args:
        planes: 3,072 bytes per image, in any shape.
    """
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def holds_pickles(data_dir: Path, *names: str) -> str:
    """Explain why a folder with pickled data cannot be used.

    Returns:
        The reason, or an empty string if the folder has none of `names` (or NAME.tar.gz).
    """
    if any((data_dir / f"{name}{ending}").exists() for name in names for ending in ("", ".tar.gz")):
        return "the python version there has pickles that can run code; they are not read"
    return ""


_HUB_100 = HubData(
    "uoft-cs/cifar100",
    "aadb3af77e9048adbea6b47c21a81e47dd092ae5",
    "cifar100",
    {
        "train": "694865d6b990e234804f01268586c41e88bcbbb75e20858432c05ad4081aca23",
        "test": "98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68",
    },
)
_BINARY_100 = BinaryVersion(
    "CIFAR-100",
    "cifar-100-binary",
    "cifar-100-binary.tar.gz",
    {"train": {"train.bin": 50_000}, "test": {"test.bin": 10_000}},
    label_bytes=2,
)
_CLASSES_100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
_SHAPE_100 = (32, 32, 3)
# Pixel mean and standard deviation of the 50,000 training images.
_SCALE_100 = PixelScale(top=255, mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))
# Mean, and average standard deviation within an image, from the code of Dimension Mixer.
_PER_IMAGE_100 = PixelScale(top=255, mean=(0.5071, 0.4865, 0.4409), std=(0.2009, 0.1984, 0.2023))


class Cifar100(FileTask):
    """CIFAR-100 with 100 fine labels, from its binary version or the Hugging Face hub."""

    card = TaskCard(
        name="cifar100",
        title="CIFAR-100",
        source="Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
        licence="none stated",
        description=(
            "60,000 32x32 color images, 100 classes, as whole images; layout sequence: patches "
            "of patch_size 1 to 16 as vectors. Pixels are divided by their standard deviation. "
            "statistics per_image: by the mean standard deviation within an image. statistics "
            "imagenet: by ImageNet's mean and standard deviation."
        ),
        needs_data=True,
        is_image=True,
        options={"patch_size": 1, "layout": "image", "augment": "none", "statistics": "data"},
        shapes=partial(pixel_shapes, classes=len(_CLASSES_100), channels=3, side=32),
    )

    get_it = f"{_BINARY_100.archive} from https://www.cs.toronto.edu/~kriz/cifar.html"

    def check(self, options: Options) -> None:
        check_one_of(options, "patch_size", (1, 2, 4, 8, 16))
        check_layout(options)
        scale_of(options, _SCALE_100, _PER_IMAGE_100)

    def forms(self, options: Options) -> Sequence[Form]:
        """List the binary version, unpacked and packed."""
        return _BINARY_100.forms(_fine, (_BINARY_100.folder,))

    def why_not(self, data_dir: Path, options: Options) -> str:
        return holds_pickles(data_dir, "cifar-100-python")

    def remote_source(self, options: Options) -> Source:
        return hub_source(_HUB_100, _decode_hub_100, partial(self.missing, options))

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        scale = scale_of(request.options, _SCALE_100, _PER_IMAGE_100)
        return carved_task(self.card, request, source, arrays, scale, _CLASSES_100)


def _fine(parts: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], name: str) -> Arrays:
    """Select the fine labels, the second of the two label columns."""
    chosen = {part: (images, labels[:, 1]) for part, (images, labels) in parts.items()}
    return check_parts(name, chosen, _SHAPE_100, len(_CLASSES_100))


def _decode_hub_100(splits: Any, progress: Progress) -> Arrays:
    parts = hub_parts(splits, "CIFAR-100", "img", "fine_label", progress)
    return check_parts(_HUB_100.repository, parts, _SHAPE_100, len(_CLASSES_100))


_GRAY = "cifar10_gray.npz.xz"
_RGB = "cifar10_rgb.npz.xz"
_APPROXIMATE = "172 of its 60,000 images are JPEG approximations"
_HUB_10 = HubData(
    "uoft-cs/cifar10",
    "0b2714987fa478483af9968de7c934580d0bb9a2",
    "plain_text",
    {
        "train": "8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883",
        "test": "841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de",
    },
)
_BINARY_10 = BinaryVersion(
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
_PER_IMAGE_10 = PixelScale(top=255, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
_CLASSES_10 = (
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
            "deviation of all pixels. statistics per_image: by the mean standard deviation within "
            "an image, as in much released code. statistics imagenet: by ImageNet's mean and "
            "standard deviation, for weights that were trained on ImageNet."
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

    get_it = f"{_BINARY_10.archive} from https://www.cs.toronto.edu/~kriz/cifar.html"

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
        binary = _BINARY_10.forms(partial(_colored_parts, color), (_BINARY_10.folder, "."))
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
        return hub_source(_HUB_10, partial(_decode_hub_10, color), explain, color)

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        scale = _scale(request.options)
        return carved_task(self.card, request, source, arrays, scale, _CLASSES_10)


def _scale(options: Options) -> PixelScale:
    color = str(options["color"])
    return scale_of(options, _SCALES[color], _PER_IMAGE_10 if color == "rgb" else None)


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


def _decode_hub_10(color: str, splits: Any, progress: Progress) -> Arrays:
    parts = hub_parts(splits, "CIFAR-10", "img", "label", progress)
    return _colored_parts(color, parts, _HUB_10.repository)


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
