"""CIFAR-100 as whole color images or patch vectors, and the binary version of CIFAR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.lab.tasks.core.base import Progress, Request, Task, check_one_of
from rifflemix.lab.tasks.core.card import TaskCard
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, damaged, reading
from rifflemix.lab.tasks.data_io.hub import HubData, hub_source
from rifflemix.lab.tasks.data_io.safe_readers import read_tar_members
from rifflemix.lab.tasks.images.parts import carved_task, check_parts, hub_parts
from rifflemix.lab.tasks.images.pixel_inputs import PixelScale
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
                raise damaged(path, f"it holds no {member}")
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


_HUB = HubData(
    "uoft-cs/cifar100",
    "aadb3af77e9048adbea6b47c21a81e47dd092ae5",
    "cifar100",
    {
        "train": "694865d6b990e234804f01268586c41e88bcbbb75e20858432c05ad4081aca23",
        "test": "98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68",
    },
)
_BINARY = BinaryVersion(
    "CIFAR-100",
    "cifar-100-binary",
    "cifar-100-binary.tar.gz",
    {"train": {"train.bin": 50_000}, "test": {"test.bin": 10_000}},
    label_bytes=2,
)
_CLASSES = (
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
_SHAPE = (32, 32, 3)
# Pixel mean and standard deviation of the 50,000 training images.
_SCALE = PixelScale(top=255, mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))
# Mean, and average standard deviation within an image, from the code of Dimension Mixer.
_PER_IMAGE = PixelScale(top=255, mean=(0.5071, 0.4865, 0.4409), std=(0.2009, 0.1984, 0.2023))


class Cifar100(FileTask):
    """CIFAR-100 with 100 fine labels, from its binary version or the Hugging Face hub."""

    card = TaskCard(
        name="cifar100",
        title="CIFAR-100",
        source="Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
        licence="none stated",
        description=(
            "60,000 32x32 color images, 100 classes, as whole images; layout sequence: patches "
            "of patch_size 1 to 16 as vectors. Pixels are divided by their standard deviation, or "
            "with statistics per_image by that within an image, on average; statistics imagenet: "
            "mean and deviation of ImageNet's images."
        ),
        needs_data=True,
        is_image=True,
        options={"patch_size": 1, "layout": "image", "augment": "none", "statistics": "data"},
        shapes=partial(pixel_shapes, classes=len(_CLASSES), channels=3, side=32),
    )

    get_it = f"{_BINARY.archive} from https://www.cs.toronto.edu/~kriz/cifar.html"

    def check(self, options: Options) -> None:
        check_one_of(options, "patch_size", (1, 2, 4, 8, 16))
        check_layout(options)
        scale_of(options, _SCALE, _PER_IMAGE)

    def forms(self, options: Options) -> Sequence[Form]:
        """List the binary version, unpacked and packed."""
        return _BINARY.forms(_fine, (_BINARY.folder,))

    def why_not(self, data_dir: Path, options: Options) -> str:
        return holds_pickles(data_dir, "cifar-100-python")

    def remote_source(self, options: Options) -> Source:
        return hub_source(_HUB, _decode_hub, partial(self.missing, options))

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        scale = scale_of(request.options, _SCALE, _PER_IMAGE)
        return carved_task(self.card, request.options, arrays, scale, source.description, _CLASSES)


def _fine(parts: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], name: str) -> Arrays:
    """Select the fine labels, the second of the two label columns."""
    chosen = {part: (images, labels[:, 1]) for part, (images, labels) in parts.items()}
    return check_parts(name, chosen, _SHAPE, len(_CLASSES))


def _decode_hub(splits: Any, progress: Progress) -> Arrays:
    parts = hub_parts(splits, "CIFAR-100", "img", "fine_label", progress)
    return check_parts(_HUB.repository, parts, _SHAPE, len(_CLASSES))
