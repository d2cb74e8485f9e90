"""CIFAR-100: whole color images, or their patches as vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.tasks.core.base import Progress, Request, Task, TaskCard, check_one_of
from rifflemix.tasks.data_io.bounded import read_tar_members
from rifflemix.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.tasks.data_io.files import Array, Arrays, Source, damaged, reading
from rifflemix.tasks.data_io.hub import HubData, hub_source
from rifflemix.tasks.images.pixels import (
    PARTS,
    PixelScale,
    binary_records,
    carved_task,
    check_layout,
    check_parts,
    holds_pickles,
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


class Cifar100(FileTask):
    """CIFAR-100 with its 100 fine labels, from its binary version or the Hugging Face hub."""

    card = TaskCard(
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

    get_it = f"{_TAR} from https://www.cs.toronto.edu/~kriz/cifar.html"

    def check(self, options: Options) -> None:
        """Patches that fit, a layout and a scale."""
        check_one_of(options, "patch_size", (1, 2, 4, 8, 16))
        check_layout(options)
        scale_of(options, _SCALE, _PER_IMAGE)

    def forms(self, options: Options) -> Sequence[Form]:
        """The binary version, unpacked or not."""
        files = {part: f"{_FOLDER}/{part}.bin" for part in PARTS}
        return (
            Form(_FOLDER, files, _decode_folder, looked_for=f"{_FOLDER}/"),
            Form(_TAR, {"all": _TAR}, _decode_tar),
        )

    def why_not(self, data_dir: Path, options: Options) -> str:
        """The version with pickles."""
        return holds_pickles(data_dir, "cifar-100-python")

    def remote_source(self, options: Options) -> Source:
        """From the Hugging Face hub."""
        return hub_source(_HUB, _decode_hub, partial(self.missing, options))

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """The task, validation carved from the training images."""
        scale = scale_of(request.options, _SCALE, _PER_IMAGE)
        return carved_task(self.card, request.options, arrays, scale, source.description, _CLASSES)


def _decode_folder(paths: Paths, progress: Progress) -> Arrays:
    progress("decoding CIFAR-100", 0, None)
    content = {}
    for part, path in paths.items():
        with reading(path):
            content[part] = binary_records(path, path.read_bytes(), _COUNTS[part], label_bytes=2)
    return _arrays(content, str(paths["test"].parent))


def _decode_tar(paths: Paths, progress: Progress) -> Arrays:
    path = paths["all"]
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
