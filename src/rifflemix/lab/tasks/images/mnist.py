"""MNIST as 784 gray pixels, patches or whole images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rifflemix.lab.tasks.core.base import Progress, Request, Task, check_one_of
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source
from rifflemix.lab.tasks.data_io.hub import HubData, hub_source
from rifflemix.lab.tasks.data_io.safe_readers import read_idx
from rifflemix.lab.tasks.images.digits import DIGITS
from rifflemix.lab.tasks.images.parts import (
    PARTS,
    carved_task,
    check_parts,
    decode_npz_parts,
    hub_parts,
)
from rifflemix.lab.tasks.images.pixel_inputs import PixelScale
from rifflemix.lab.tasks.images.pixels import check_layout, pixel_shapes

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
_SCALE = PixelScale(top=255, mean=(0.1307,), std=(0.3081,))


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
        return carved_task(self.card, request.options, arrays, _SCALE, source.description, DIGITS)


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
