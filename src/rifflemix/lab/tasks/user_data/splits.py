"""Splits of user data in memory: rows, frames of series, and images."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.checks import check_integer, shown
from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.arrays import (
    Truncate,
    as_floats,
    bad_input,
    check_length,
    cut,
    listed,
    plain_array,
)
from rifflemix.lab.tasks.core.base import SPLITS, Sample
from rifflemix.lab.tasks.data_io.columns import (
    RECORDINGS,
    Recording,
    check_alike,
    is_recording,
    read_recording,
)
from rifflemix.lab.tasks.images.image_files import PixelInputs, PixelScale
from rifflemix.lab.tasks.user_data.labels import Labels
from rifflemix.lab.tasks.user_data.samples import Samples
from rifflemix.lab.tasks.user_data.splitting import Division

Floats = NDArray[np.float32]

MISSING = ("error", "mask")
"""Treatments of missing values (NaN)."""


@dataclass(frozen=True)
class FrameInputs:
    """Series (T, C), or recordings and their paths, as vectors (N, F).

    Attributes:
        channels: Number of channels C.
        max_length: Maximum number of vectors N.
        fixed: True if all samples have `max_length` vectors.
        mean, std: Scale of each channel, from the training split.
        missing: "error" refuses NaN. "mask" replaces NaN by the mean of the channel, and adds
            a channel with 1 at missing values for each channel.
        frame: Number of steps in a vector.
        hop: Number of steps between the starts of two vectors.
        rate: Steps per second of recordings. None if the training data has no rate.
        cuts: True if longer samples are cut, as in training.
        columns: Columns of the user's table. Empty without a table.
        truncate: Part of a longer sample that remains.
    """

    kind: ClassVar[str] = "frames"
    channels: int
    max_length: int
    fixed: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    missing: str = "error"
    frame: int = 1
    hop: int = 1
    rate: int | None = None
    cuts: bool = False
    columns: tuple[str, ...] = ()
    truncate: Truncate = "head"

    @property
    def size(self) -> int:
        """Number of features F of a vector."""
        return self.frame * self.channels * (2 if self.missing == "mask" else 1)

    def convert(self, values: Floats) -> Floats:
        """Convert a series (T, C) to vectors (N, F): scale, mark gaps, cut into frames."""
        gaps = np.isnan(values)
        mean, std = (np.array(scale, dtype=np.float32) for scale in (self.mean, self.std))
        scaled = (values - mean) / std
        if self.missing == "mask":
            scaled = np.concatenate((np.where(gaps, np.float32(0), scaled), gaps), axis=1)
        vectors = to_frames(scaled.astype(np.float32), self.frame, self.hop)
        return cut(vectors, self.max_length, self.truncate) if self.cuts else vectors

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert series (T, C), or (T,) of one channel, or paths of recordings."""
        found = []
        for number, row in enumerate(listed(raw, "series")):
            vectors = self.convert(self._values(row, number))
            check_length(len(vectors), self.max_length, number, "vectors", fixed=self.fixed)
            found.append(torch.from_numpy(vectors))
        return found

    def _values(self, row: Any, number: int) -> Floats:
        if isinstance(row, str) and not is_recording(row):
            raise bad_input(f"numbers or a path ({', '.join(RECORDINGS)})", shown(row), number)
        if isinstance(row, str | Path | Recording):
            recording = row if isinstance(row, Recording) else read_recording(Path(row))
            name = f"input {number}" if isinstance(row, Recording) else row
            check_alike(name, recording, self.channels, self.rate)
            values: NDArray[Any] = recording.values
        else:
            values = plain_array(row)
            if values.dtype.kind == "O":  # rows of a pandas table with columns of several types
                values = as_floats(values, row, number)
        if values.ndim == 1 and self.channels == 1:
            values = values[:, None]
        if values.ndim != 2 or values.shape[1] != self.channels or values.dtype.kind not in "biuf":
            shape = f"(T, {self.channels})" + (" or (T,)" if self.channels == 1 else "")
            raise bad_input(f"numbers {shape}", f"{values.dtype} of {values.shape}", number)
        with np.errstate(over="ignore"):
            floats = values.astype(np.float32)
        bad = np.isinf(floats) if self.missing == "mask" else ~np.isfinite(floats)
        if bad.any():
            raise bad_input("finite numbers", values[bad][0], number)
        return floats


def to_frames(values: Floats, frame: int, hop: int) -> Floats:
    """Cut a series (T, C) into frames (N, frame x C), with zeros after the end.

    Every step is in a frame if `hop` is at most `frame`.
    """
    if frame == hop == 1:
        return values
    count = frame_counts(np.array([len(values)]), frame, hop).item()
    padded = np.zeros(((count - 1) * hop + frame, values.shape[1]), dtype=values.dtype)
    padded[: len(values)] = values[: len(padded)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, frame, axis=0)[::hop]
    return np.array(windows.swapaxes(1, 2)).reshape(count, -1)


def frame_counts(lengths: NDArray[np.int64], frame: int, hop: int) -> NDArray[np.int64]:
    """Return the number of frames of series with these numbers of steps."""
    return 1 + -(-np.maximum(lengths - frame, 0) // hop)


@dataclass(frozen=True, eq=False)
class UserSplit:
    """Selected samples in a given order.

    Attributes:
        samples: Samples of all splits.
        labels: Labels of all samples.
        rows: Indices of the samples in this split.
        inputs: Conversion of images or series. None for other samples.
    """

    samples: Samples
    labels: Labels
    rows: NDArray[np.int64]
    inputs: PixelInputs | FrameInputs | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return a sample and its label.

        Samples are tokens (N,) int64, vectors (N, F) float32 or an image (C, H, W) float32.
        """
        row = int(self.rows[index])
        values, label = self.samples[row], self.labels.of(row)
        if isinstance(self.inputs, FrameInputs):
            return torch.from_numpy(self.inputs.convert(values)), label
        if self.inputs is not None:
            return self.inputs.convert(values)[0], label
        dtype = np.int64 if self.samples.kind == "tokens" else np.float32
        return torch.from_numpy(values.astype(dtype)), label

    @property
    def targets(self) -> NDArray[Any]:
        """Labels of the samples, in order."""
        return self.labels.values[self.rows]

    def digest(self) -> bytes:
        total = hashlib.blake2b(digest_size=16)
        if self.samples.hashes is not None:
            total.update(self.samples.hashes[self.rows].tobytes())
            total.update(np.ascontiguousarray(self.labels.values[self.rows]).tobytes())
            return total.digest()
        for row in self.rows.tolist():
            values = self.samples[row]
            total.update(f"{values.shape}{values.dtype}".encode() + self.labels.content(row) + b";")
            total.update(values.tobytes())
        return total.digest()


_MOST_PATCHES = 256


@dataclass(frozen=True)
class ImageOptions:
    """Options of images, see `Task.from_arrays`."""

    patch_size: int | None
    layout: str

    def check_unused(self, what: str) -> None:
        """Raise if an option is set although the samples are no images."""
        if self.patch_size is not None or self.layout != "sequence":
            raise bad_argument("patch_size and layout", "only beside images", what)


def image_shape(
    samples: Samples, division: Division, labels: Labels, patch: int | None
) -> dict[str, Any]:
    """Return the fields of `Task` that depend on the images."""
    _, height, width, channels = samples.values.shape
    mean, std = _statistics(samples.values, division.rows["train"])
    inputs = PixelInputs(
        height,
        width,
        PixelScale(1, tuple(mean.tolist()), tuple(std.tolist())),
        patch,
        largest=255 if samples.values.dtype == np.uint8 else None,
    )
    shape = {
        "vocab_size": None,
        "padding": False,
        "splits": {
            name: UserSplit(samples, labels, division.rows[name], inputs) for name in SPLITS
        },
        "inputs": inputs,
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


def patch_size(samples: Samples, options: ImageOptions) -> int | None:
    """Return the side of the patches. Return None for whole images."""
    given = options.patch_size
    height, width = samples.values.shape[1:3]
    if options.layout == "image":
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
