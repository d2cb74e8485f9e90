"""Task from samples and labels in memory."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rifflemix.checks import check_bool, check_integer
from rifflemix.errors import InputWarning, bad_argument, check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Budget, Sample, Task, TaskCard
from rifflemix.lab.tasks.core.leaks import leaks
from rifflemix.lab.tasks.core.numbers import NumberTask
from rifflemix.lab.tasks.core.own_data import DEFAULT_SPLIT
from rifflemix.lab.tasks.images.pixels import LAYOUTS, WholeImages
from rifflemix.lab.tasks.own.empty import Given
from rifflemix.lab.tasks.own.labels import Labels, read_labels
from rifflemix.lab.tasks.own.samples import Samples, contents, read_samples
from rifflemix.lab.tasks.own.splitting import Division, divide

_MOST_PATCHES = 256
_MOST_LENGTH = 1 << 32  # longer than any sample in memory
_BUDGET = Budget()


@dataclass(frozen=True)
class Origin:
    """Origin of user data, for cards and results.

    Attributes:
        name: Task name.
        title: Title in tables. If empty, the name is the title.
        data_source: File, data set or memory that contained the data.
        options: Arguments that affect the data, in addition to the ones `from_arrays` records.
        split_note: Origin of the splits, if `from_arrays` did not draw them.
    """

    name: str = "arrays"
    title: str = ""
    data_source: str = "arrays in memory"
    options: Mapping[str, Any] = field(default_factory=dict)
    split_note: str = ""


@dataclass(frozen=True, eq=False)
class OwnSplit:
    """Selected samples in a given order.

    Attributes:
        samples: Samples of all splits.
        labels: (M,) labels of all samples.
        rows: Indices of the samples in this split.
        patch_size: Side of the image patches. None for whole images.
        mean, std: (C,) channel statistics of images.
    """

    samples: Samples
    labels: NDArray[Any]
    rows: NDArray[np.int64]
    patch_size: int | None = None
    mean: NDArray[np.float32] | None = None
    std: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return a sample and its label.

        Samples are tokens (N,) int64, vectors (N, F) float32 or an image (C, H, W) float32.
        """
        row = int(self.rows[index])
        values, label = self.samples[row], self.labels[row].item()
        if self.mean is not None and self.std is not None:
            pixels = (values[0].astype(np.float32) - self.mean) / self.std
            values = self._image(pixels.astype(np.float32))
        return torch.from_numpy(np.array(values)), label

    def digest(self) -> bytes:
        total = hashlib.blake2b(digest_size=16)
        for row in self.rows.tolist():
            values = self.samples[row]
            total.update(f"{values.shape}{values.dtype}{self.labels[row].item()!r};".encode())
            total.update(values.tobytes())
        return total.digest()

    def _image(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Convert an image to patches or to channels-first layout.

        The result is (N, size * size * C) or, for whole images, (C, H, W). Patches are ordered row
        by row. Their channels are last.
        """
        height, width, channels = pixels.shape
        size = self.patch_size
        if size is None:
            return np.ascontiguousarray(pixels.transpose(2, 0, 1))
        grid = pixels.reshape(height // size, size, width // size, size, channels)
        return grid.transpose(0, 2, 1, 3, 4).reshape(-1, size * size * channels)


def from_arrays(
    x: Any,
    y: Any,
    *,
    lengths: Any = None,
    split: Any = DEFAULT_SPLIT,
    seed: int = 0,
    kind: str = "auto",
    groups: Any = None,
    max_length: int | None = None,
    drop_empty: bool = False,
    patch_size: int | None = None,
    layout: str = "sequence",
    name: str = "arrays",
    origin: Origin | None = None,
) -> Task:
    """Implement `Task.from_arrays`. File readers describe the data with `origin`."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise bad_argument("name", "a printable text", repr(name))
    check_choice("layout", layout, LAYOUTS)
    if max_length is not None:
        max_length = min(check_integer("max_length", max_length, 1), _MOST_LENGTH)
    check_bool("drop_empty", drop_empty)
    given = Given(x, y, lengths, groups, split)
    if drop_empty:
        given = given.without_empty()
    samples = read_samples(given.x, given.lengths, max_length)
    labels = read_labels(given.y, len(samples), kind)
    division = divide(given.split, labels, given.groups, seed)
    origin = origin or Origin(name)
    options = {
        **origin.options,
        "kind": "classification" if labels.are_classes else "regression",
        **({"max_length": max_length} if max_length else {}),
        **({"drop_empty": True} if drop_empty else {}),
    }
    if samples.kind == "images":
        patch = _patch_size(samples, patch_size, layout)
        options |= {"layout": layout} | ({} if patch is None else {"patch_size": patch})
        shape = _image_shape(samples, division, labels, patch)
    elif patch_size is not None or layout != "sequence":
        raise bad_argument("patch_size and layout", "only beside images", f"{samples.kind}")
    else:
        shape = _sequence_shape(samples, division, labels)
    note = _note(samples, division, max_length, origin)
    if given.dropped:
        note += f"; {given.dropped:,} empty samples left out"
    return _task(samples, labels, division, shape, origin, options, note)


def _note(samples: Samples, division: Division, most: int | None, origin: Origin) -> str:
    """Describe the origin and problems of the splits.

    Warn about duplicates across splits.
    """
    notes = [origin.split_note or division.note]
    hashes = [hash(content) for content in contents(samples)]
    doubles = leaks({name: (hashes[row] for row in rows) for name, rows in division.rows.items()})
    if doubles:
        notes.append(doubles)
        warnings.warn(f"task {origin.name}: {doubles}", InputWarning, stacklevel=5)
    if samples.cut:
        notes.append(f"{samples.cut:,} of {len(samples):,} samples cut to {most:,} tokens")
    return "; ".join(notes)


def _task(
    samples: Samples,
    labels: Labels,
    division: Division,
    shape: Mapping[str, Any],
    origin: Origin,
    options: Mapping[str, Any],
    note: str,
) -> Task:
    whole = shape.get("image_shape")
    if whole is not None and not labels.are_classes:
        raise bad_argument("layout", "'sequence' where numbers are predicted", "'image'")
    cls: type[Task] = WholeImages if whole is not None else Task
    if not labels.are_classes:
        train = labels.values[division.rows["train"]]
        # If all training targets are equal, their deviation is 0 and 1 replaces it.
        scale = {"target_mean": float(train.mean()), "target_std": float(train.std()) or 1.0}
        shape = {**shape, **scale, "metric": "rmse", "higher_is_better": False}
        cls = NumberTask
    return cls(
        name=origin.name,
        options=options,
        num_classes=max(len(labels.classes), 1),
        split_note=note,
        data_source=origin.data_source,
        card=_card(samples, labels, division, origin),
        **shape,
    )


def _card(samples: Samples, labels: Labels, division: Division, origin: Origin) -> TaskCard:
    what = f"{len(labels.classes)} classes" if labels.are_classes else "a number"
    batch_size = min(_BUDGET.batch_size, len(division.rows["train"]))
    return TaskCard(
        name=origin.name,
        title=origin.title or origin.name,
        source=origin.data_source,
        licence="the user's own data",
        description=f"{len(samples):,} samples of {samples.kind}, {what}.",
        needs_data=False,
        options={"layout": "sequence"} if samples.kind == "images" else {},
        output="classes" if labels.are_classes else "number",
        budget=Budget(batch_size=batch_size),
    )


def _sequence_shape(samples: Samples, division: Division, labels: Labels) -> dict[str, Any]:
    lengths = samples.lengths
    is_tokens = samples.kind == "tokens"
    return {
        "input_kind": samples.kind,
        "vocab_size": samples.vocab_size,
        "num_features": None if is_tokens else samples.values.shape[1],
        "max_length": int(lengths.max()),
        "padding": bool((lengths != lengths[0]).any()),
        "splits": {name: OwnSplit(samples, labels.values, division.rows[name]) for name in SPLITS},
    }


def _image_shape(
    samples: Samples, division: Division, labels: Labels, patch: int | None
) -> dict[str, Any]:
    _, height, width, channels = samples.values.shape
    mean, std = _statistics(samples.values, division.rows["train"])
    shape = {
        "vocab_size": None,
        "padding": False,
        "splits": {
            name: OwnSplit(samples, labels.values, division.rows[name], patch, mean, std)
            for name in SPLITS
        },
    }
    if patch is None:
        return shape | {
            "input_kind": "images",
            "num_features": None,
            "max_length": height * width,
            "image_shape": (channels, height, width),
        }
    return shape | {
        "input_kind": "vectors",
        "num_features": patch**2 * channels,
        "max_length": (height // patch) * (width // patch),
    }


def _statistics(
    images: NDArray[Any], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute mean and standard deviation per channel of the training images.

    The standard deviation is 1 for a channel without variation.
    """
    total = np.zeros(images.shape[3])
    square = np.zeros(images.shape[3])
    middle = images[rows[0]].mean(axis=(0, 1), dtype=np.float64)  # keeps squares small
    for row in rows.tolist():
        pixels = images[row].astype(np.float64) - middle
        total += pixels.mean(axis=(0, 1))
        square += (pixels**2).mean(axis=(0, 1))
    mean = total / len(rows)
    std = np.sqrt(np.maximum(square / len(rows) - mean**2, 0.0))
    return (mean + middle).astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32)


def _patch_size(samples: Samples, given: int | None, layout: str) -> int | None:
    height, width = samples.values.shape[1:3]
    if layout == "image":
        if given is not None:
            raise bad_argument("patch_size", "None with layout 'image'", given, "models cut")
        return None
    side = math.gcd(height, width)
    if given is not None:
        if side % check_integer("patch_size", given, 1):
            raise bad_argument("patch_size", f"a divisor of {height} and {width}", given)
        return given
    fitting = [size for size in range(1, side + 1) if side % size == 0]
    small = (s for s in fitting if (height // s) * (width // s) <= _MOST_PATCHES)
    return next(small, fitting[-1])
