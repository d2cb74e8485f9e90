"""CIFAR-100: whole color images, or their patches as vectors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rifflemix.errors import InputError
from rifflemix.tasks.core.base import Progress, Request, Task, TaskCard, TaskStatus, check_one_of
from rifflemix.tasks.data_io.bounded import read_tar_members
from rifflemix.tasks.data_io.files import (
    Arrays,
    Source,
    damaged,
    load_source,
    missing_data,
    reading,
    source_folder,
    source_status,
    stat_key,
)
from rifflemix.tasks.data_io.hub import HubData, hub_source
from rifflemix.tasks.images.pixels import (
    PARTS,
    PixelScale,
    binary_records,
    carved_task,
    check_layout,
    check_parts,
    scale_of,
)

_FOLDER = "cifar-100-binary"
_TAR = "cifar-100-binary.tar.gz"
_HUB = HubData(
    "uoft-cs/cifar100",
    "aadb3af77e9048adbea6b47c21a81e47dd092ae5",
    "cifar100",
    {
        "train": "694865d6b990e234804f01268586c41e88bcbbb75e20858432c05ad4081aca23",
        "test": "98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68",
    },
)
_COUNTS = {"train": 50_000, "test": 10_000}
_CLASSES = 100
_SHAPE = (32, 32, 3)
# Pixel mean and standard deviation of the 50,000 training images.
_SCALE = PixelScale(top=255, mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))
# The standard deviation within an image, on average, as Dimension Mixer's code has both.
_PER_IMAGE = PixelScale(top=255, mean=(0.5071, 0.4865, 0.4409), std=(0.2009, 0.1984, 0.2023))


class Cifar100:
    """CIFAR-100 with its 100 fine labels, from its binary version or the Hugging Face hub."""

    card: ClassVar[TaskCard] = TaskCard(
        name="cifar100",
        title="CIFAR-100",
        source="Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
        licence="none stated",
        description=(
            "60,000 32x32 color images, 100 classes, as whole images; layout sequence: patches "
            "of patch_size 1 to 16 as vectors. Pixels are divided by their standard deviation, or "
            "with statistics per_image by that within an image, on average."
        ),
        needs_data=True,
        options={"patch_size": 1, "layout": "image", "augment": "none", "statistics": "data"},
    )

    def load(self, request: Request) -> Task:
        """The task, decoded to the cache when first read."""
        check_one_of(request.options, "patch_size", (1, 2, 4, 8, 16))
        check_layout(request.options)
        scale = scale_of(request.options, _SCALE, _PER_IMAGE)
        source = self._source(request.data_dir)
        arrays = load_source(self.card, source, request.progress)
        return carved_task(self.card, request.options, arrays, scale, source.description, _CLASSES)

    def status(self, data_dir: Path | None) -> TaskStatus:
        """What is found in `data_dir`, or was fetched before."""
        source = _find(data_dir) if data_dir else self._source(None)
        return source_status(self.card, source, data_dir)

    def prepared(self, request: Request) -> Path | None:
        """The folder of decoded images."""
        return source_folder(self.card, self._source(request.data_dir))

    def _source(self, data_dir: Path | None) -> Source:
        if data_dir is None:
            return hub_source(_HUB, _decode_hub, self._missing)
        source = _find(data_dir)
        if source is None:
            raise self._missing(_why_not(data_dir), data_dir)
        return source

    def _missing(self, why: str, data_dir: Path | None = None) -> InputError:
        return missing_data(
            self.card,
            data_dir,
            (f"{_FOLDER}/", _TAR),
            f"{_TAR} from https://www.cs.toronto.edu/~kriz/cifar.html",
            why,
        )


def _find(data_dir: Path) -> Source | None:
    folder = data_dir / _FOLDER
    paths = {part: folder / f"{part}.bin" for part in PARTS}
    present = [path for path in paths.values() if path.is_file()]
    if present:
        for path in paths.values():
            if not path.is_file():
                raise InputError(f"{path}: the file is missing, its companion is there")
        return Source(_FOLDER, stat_key(present), partial(_decode_folder, paths))
    path = data_dir / _TAR
    return Source(_TAR, stat_key([path]), partial(_decode_tar, path)) if path.is_file() else None


def _why_not(data_dir: Path) -> str:
    python_version = ("cifar-100-python", "cifar-100-python.tar.gz")
    if any((data_dir / name).exists() for name in python_version):
        return "the python version there holds pickles, which can run code and are not read"
    return ""


def _decode_folder(paths: dict[str, Path], progress: Progress) -> Arrays:
    progress("decoding CIFAR-100", 0, None)
    content = {}
    for part, path in paths.items():
        with reading(path):
            content[part] = binary_records(path, path.read_bytes(), _COUNTS[part], label_bytes=2)
    return _arrays(content, str(paths["test"].parent))


def _decode_tar(path: Path, progress: Progress) -> Arrays:
    progress(f"decoding {path.name}", 0, None)
    wanted = {f"{_FOLDER}/{part}.bin": part for part in PARTS}
    content = {
        wanted[name]: binary_records(path, member, _COUNTS[wanted[name]], label_bytes=2)
        for name, member in read_tar_members(path, wanted.__contains__)
    }
    for name, part in wanted.items():
        if part not in content:
            raise damaged(path, f"it holds no {name}")
    return _arrays(content, str(path))


def _arrays(content: dict[str, Arrays], name: str) -> Arrays:
    """Images and fine labels, which come second, behind the coarse ones."""
    parts = {part: (content[part]["images"], content[part]["labels"][:, 1]) for part in PARTS}
    return check_parts(name, parts, _SHAPE, _CLASSES)


def _decode_hub(splits: Any, progress: Progress) -> Arrays:
    parts: dict[str, tuple[object, object]] = {}
    for part in PARTS:
        rows = splits[part]
        progress(f"decoding CIFAR-100 {part} images", 0, len(rows))
        images = np.stack([np.asarray(row["img"], dtype=np.uint8) for row in rows])
        parts[part] = images, np.asarray(rows["fine_label"])
    return check_parts(_HUB.repository, parts, _SHAPE, _CLASSES)
