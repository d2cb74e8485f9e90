"""CIFAR-100 as whole color images or patch vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rifflemix.lab.tasks.core.base import Progress, Request, Task, TaskCard, check_one_of
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source
from rifflemix.lab.tasks.data_io.hub import HubData, hub_source
from rifflemix.lab.tasks.images.cifar import BinaryVersion, holds_pickles
from rifflemix.lab.tasks.images.pixels import (
    PixelScale,
    carved_task,
    check_layout,
    check_parts,
    hub_parts,
    scale_of,
)

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
_CLASSES = 100
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
    return check_parts(name, chosen, _SHAPE, _CLASSES)


def _decode_hub(splits: Any, progress: Progress) -> Arrays:
    parts = hub_parts(splits, "CIFAR-100", "img", "fine_label", progress)
    return check_parts(_HUB.repository, parts, _SHAPE, _CLASSES)
