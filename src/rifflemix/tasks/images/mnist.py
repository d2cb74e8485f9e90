"""MNIST: 784 gray pixels as tokens, or patches as vectors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rifflemix.errors import InputError
from rifflemix.tasks.core.base import (
    Budget,
    Progress,
    Request,
    Task,
    TaskCard,
    TaskStatus,
    check_one_of,
)
from rifflemix.tasks.data_io.bounded import read_idx
from rifflemix.tasks.data_io.files import (
    Arrays,
    Source,
    load_source,
    missing_data,
    source_folder,
    source_status,
    stat_key,
)
from rifflemix.tasks.data_io.hub import HubData, hub_source
from rifflemix.tasks.images.pixels import (
    PARTS,
    PixelScale,
    carved_task,
    check_layout,
    check_parts,
    decode_npz_parts,
)

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


class Mnist:
    """MNIST, from its idx files or one .npz.xz archive."""

    card: ClassVar[TaskCard] = TaskCard(
        name="mnist",
        title="MNIST",
        source="LeCun, Cortes and Burges (1998)",
        licence="CC BY-SA 3.0",
        description=(
            "70,000 28x28 gray images of digits, 10 classes. patch_size 1: 784 tokens with 256 "
            "levels; 2, 4, 7 or 14: patches as vectors; layout image: whole images."
        ),
        needs_data=True,
        options={"patch_size": 1, "layout": "sequence", "augment": "none"},
        budget=Budget(batch_size=64),
    )

    def load(self, request: Request) -> Task:
        """The task, decoded to the cache when first read."""
        check_one_of(request.options, "patch_size", (1, 2, 4, 7, 14))
        check_layout(request.options)
        source = self._source(request.data_dir)
        arrays = load_source(self.card, source, request.progress)
        return carved_task(self.card, request.options, arrays, _SCALE, source.description)

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
            raise self._missing("", data_dir)
        return source

    def _missing(self, why: str, data_dir: Path | None = None) -> InputError:
        names = [*(f"{name}[.gz]" for name in _IDX.values()), _ARCHIVE]
        return missing_data(
            self.card,
            data_dir,
            names,
            "the four idx files from https://yann.lecun.com/exdb/mnist or a mirror of it",
            why,
        )


def _find(data_dir: Path) -> Source | None:
    for folder in (data_dir, data_dir / "MNIST" / "raw"):
        found = {part: _plain_or_gzipped(folder / name) for part, name in _IDX.items()}
        present = {part: path for part, path in found.items() if path is not None}
        if present and len(present) < len(_IDX):
            absent = next(name for part, name in _IDX.items() if part not in present)
            raise InputError(f"{folder / absent}: the file is missing, its companions are there")
        if present:
            return Source(
                "MNIST idx files", stat_key(present.values()), partial(_decode_idx, present)
            )
    archive = data_dir / _ARCHIVE
    if archive.is_file():
        return Source(_ARCHIVE, stat_key([archive]), partial(_decode_archive, archive))
    return None


def _plain_or_gzipped(path: Path) -> Path | None:
    zipped = path.with_name(path.name + ".gz")
    return path if path.is_file() else zipped if zipped.is_file() else None


def _decode_idx(paths: Mapping[str, Path], progress: Progress) -> Arrays:
    progress("decoding MNIST", 0, None)
    content = {name: read_idx(path) for name, path in paths.items()}
    parts = {part: (content[f"{part}_images"], content[f"{part}_labels"]) for part in PARTS}
    return check_parts(str(paths["train_images"].parent), parts, _SHAPE)


def _decode_archive(path: Path, progress: Progress) -> Arrays:
    progress(f"decoding {path.name}", 0, None)
    return decode_npz_parts(path, _SHAPE)


def _decode_hub(splits: Any, progress: Progress) -> Arrays:
    parts: dict[str, tuple[object, object]] = {}
    for part in PARTS:
        rows = splits[part]
        progress(f"decoding MNIST {part} images", 0, len(rows))
        images = np.stack([np.asarray(row["image"], dtype=np.uint8) for row in rows])
        parts[part] = images, np.asarray(rows["label"])
    return check_parts(_HUB.repository, parts, _SHAPE)
