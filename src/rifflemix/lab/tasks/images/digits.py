"""Images of digits: real handwritten digits that ship with the package, and MNIST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.lab.tasks.core.base import SPLITS, Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_one_of, content_order
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.core.generated import GeneratedTask
from rifflemix.lab.tasks.data_io.file_task import (
    FileTask,
    Form,
    HubData,
    Options,
    Paths,
    hub_source,
)
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, check_sha256
from rifflemix.lab.tasks.data_io.safe_readers import read_idx
from rifflemix.lab.tasks.images.image_files import PixelScale
from rifflemix.lab.tasks.images.parts import (
    PARTS,
    carved_task,
    check_parts,
    decode_npz_parts,
    hub_parts,
)
from rifflemix.lab.tasks.images.pixels import check_layout, pixel_shapes, pixel_task

DIGITS = tuple(map(str, range(10)))
"""Names of the classes."""

_DIGITS_FILE = Path(__file__).parent / "files" / "digits.npz"
_DIGITS_SHA256 = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"
# Mean and standard deviation of the training pixels.
_DIGITS_SCALE = PixelScale(top=16, mean=(0.3054,), std=(0.3759,))


class Digits(GeneratedTask):
    """UCI Optical Recognition of Handwritten Digits: 8x8 pixels with 17 gray levels."""

    takes_seed = False
    card = TaskCard(
        name="digits",
        title="Handwritten digits",
        source="UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998)",
        licence="CC BY 4.0",
        description=(
            "1,797 real 8x8 images of digits with 17 gray levels, 10 classes. patch_size 1: 64 "
            "tokens; 2 or 4: 16 or 4 patches as vectors. Ships with the package."
        ),
        needs_data=False,
        is_image=True,
        options={"patch_size": 1},
        budget=Budget(max_steps=400, batch_size=64, lr=5e-3, evaluations=8),
        shapes=partial(pixel_shapes, classes=10, channels=1, side=8, levels=17),
    )

    at_hand = "ships with the package"

    def load(self, request: Request) -> Task:
        """Load the task and check the sha256 of its file."""
        check_one_of(request.options, "patch_size", (1, 2, 4))
        images, labels, rows_of = read_digits()
        stack = (Array(images), Array(labels))
        return pixel_task(
            self.card,
            request.options,
            {name: (*stack, rows) for name, rows in rows_of.items()},
            scale=_DIGITS_SCALE,
            split_note=(
                "60 / 20 / 20 % train / validation / test, stratified by class, fixed by a hash "
                "of the images and so independent of any seed"
            ),
            data_source="digits.npz of the package",
            classes=DIGITS,
        )


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    """Return images (M, 8, 8), labels (M,) and the rows of each split."""
    check_sha256(_DIGITS_FILE, _DIGITS_SHA256)
    with np.load(_DIGITS_FILE, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    return images, labels, _split_rows(images, labels)


def _split_rows(
    images: NDArray[np.uint8], labels: NDArray[np.uint8]
) -> dict[str, NDArray[np.int64]]:
    pixels = [image.tobytes() for image in images]
    chosen, order = content_order(pixels, "digits: split"), content_order(pixels, "digits: order")
    split_of = np.zeros(len(labels), dtype=np.int64)
    for label in range(10):
        members = chosen[labels[chosen] == label]
        fifth = len(members) // 5
        split_of[members[:fifth]] = 2
        split_of[members[fifth : 2 * fifth]] = 1
    return {name: order[split_of[order] == code] for code, name in enumerate(SPLITS)}


_IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_ARCHIVE = "mnist.npz.xz"
_HUB = HubData(
    "ylecun/mnist",
    "77f3279092a1c1579b2250db8eafed0ad422088c",
    "mnist",
    {
        "train": "f2c01285a9f89399335b00ee4e8d499dc4e46db5e39c74903ce5618d895eb3bf",
        "test": "d49fcf556ce25b002b302e318ce4a11098bbfe5d4499c3f35d7c72297c52374b",
    },
)
_SHAPE = (28, 28)
# Mean and standard deviation of the 60,000 training images.
_MNIST_SCALE = PixelScale(top=255, mean=(0.1307,), std=(0.3081,))


class Mnist(FileTask):
    """MNIST from its idx files, an .npz.xz archive or the Hugging Face hub."""

    card = TaskCard(
        name="mnist",
        title="MNIST",
        source="LeCun, Cortes and Burges (1998)",
        licence="CC BY-SA 3.0",
        description=(
            "70,000 28x28 gray images of digits, 10 classes. patch_size 1: 784 tokens with 256 "
            "levels; 2, 4, 7 or 14: patches as vectors; layout image: whole images."
        ),
        needs_data=True,
        is_image=True,
        options={"patch_size": 1, "layout": "sequence", "augment": "none"},
        budget=Budget(batch_size=64),
        shapes=partial(pixel_shapes, classes=10, channels=1, side=28),
    )

    get_it = "the four idx files from https://yann.lecun.com/exdb/mnist or a mirror of it"

    def check(self, options: Options) -> None:
        check_one_of(options, "patch_size", (1, 2, 4, 7, 14))
        check_layout(options)

    def forms(self, options: Options) -> Sequence[Form]:
        """List the idx files and the .npz.xz archive."""
        folders, endings = (".", "MNIST/raw"), ("", ".gz")
        return (
            Form("MNIST idx files", _IDX, _decode_idx, folders, endings),
            Form(_ARCHIVE, {"all": _ARCHIVE}, _decode_archive),
        )

    def remote_source(self, options: Options) -> Source:
        return hub_source(_HUB, _decode_hub, partial(self.missing, options))

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        return carved_task(self.card, request, source, arrays, _MNIST_SCALE, DIGITS)


def _decode_idx(paths: Paths, progress: Progress) -> Arrays:
    progress("decoding MNIST", 0, None)
    content = {name: read_idx(path) for name, path in paths.items()}
    parts = {part: (content[f"{part}_images"], content[f"{part}_labels"]) for part in PARTS}
    return check_parts(str(paths["train_images"].parent), parts, _SHAPE)


def _decode_archive(paths: Paths, progress: Progress) -> Arrays:
    path = paths["all"]
    progress(f"decoding {path.name}", 0, None)
    return decode_npz_parts(path, _SHAPE)


def _decode_hub(splits: Any, progress: Progress) -> Arrays:
    parts = hub_parts(splits, "MNIST", "image", "label", progress)
    return check_parts(_HUB.repository, parts, _SHAPE)
