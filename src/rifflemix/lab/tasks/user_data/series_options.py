"""Options of series in user data: scale, gaps and frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import check_bool, check_integer
from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.data_io.columns import (
    Recording,
    is_recording,
    read_recording,
    values_of,
)
from rifflemix.lab.tasks.user_data.labels import Labels
from rifflemix.lab.tasks.user_data.samples import MOST_TOKENS, Samples
from rifflemix.lab.tasks.user_data.splits import MISSING, FrameInputs, UserSplit, frame_counts
from rifflemix.lab.tasks.user_data.splitting import Division
from rifflemix.lab.tasks.user_data.tokenizing import TextOptions

_MOST_FRAME = 1 << 20


@dataclass(frozen=True)
class SeriesOptions:
    """Options of series, see `Task.from_arrays`.

    Attributes:
        frame, hop, missing, normalize: Same as in `Task.from_arrays`.
        rate: Steps per second of recordings. None without recordings.
    """

    frame: int | None = None
    hop: int | None = None
    missing: str = "error"
    normalize: bool = False
    rate: int | None = None

    def checked(self) -> SeriesOptions:
        """Return the options, or raise for a value out of range."""
        check_choice("missing", self.missing, MISSING)
        check_bool("normalize", self.normalize)
        if self.frame is not None:
            check_integer("frame", self.frame, 1, _MOST_FRAME)
        if self.hop is not None:
            if self.frame is None:
                raise bad_argument("hop", "None without frame", self.hop)
            check_integer("hop", self.hop, 1, self.frame)
        return self

    @property
    def is_used(self) -> bool:
        """Whether samples are converted: by an option, or because they are recordings."""
        return self != SeriesOptions()

    def check_unused(self, what: str) -> None:
        """Raise if an option is set for data that has no series."""
        if replace(self, rate=None) != SeriesOptions():
            names = "frame, hop, missing and normalize"
            raise bad_argument(names, f"no such option for {what}", "one")

    def recorded(self) -> dict[str, Any]:
        """Return the options that are not the default, for the record of the task."""
        default = SeriesOptions()
        names = ("frame", "hop", "missing", "normalize")
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(default, n)}


def read_paths(x: Any, folder: Path | None = None) -> tuple[Any, int | None]:
    """Read the recordings if the samples are their paths.

    Args:
        x: Samples. Paths are `pathlib.Path` objects, or names of files if `folder` is given.
        folder: Folder of the files.

    Returns:
        The samples and their rate, see `values_of`. Other samples are returned unchanged.
    """
    if not isinstance(x, list | tuple) or not x:
        return x, None
    if all(isinstance(one, Recording) for one in x):
        return values_of(x, [f"x: sample {number}" for number in range(len(x))])
    kind = Path if folder is None else str
    if not all(isinstance(path, kind) for path in x) or not all(map(is_recording, x)):
        return x, None
    paths = [Path(path) if folder is None else folder / path for path in x]
    return values_of([read_recording(path) for path in paths], paths)


def series_shape(
    samples: Samples,
    division: Division,
    labels: Labels,
    series: SeriesOptions,
    options: TextOptions,
    columns: tuple[str, ...],
) -> dict[str, Any]:
    """Return the attributes of a task whose samples are series."""
    train = division.rows["train"]
    channels = samples.values.shape[1]
    mean, std = (0.0,) * channels, (1.0,) * channels
    if series.normalize:
        mean, std = channel_scale(samples, train)
    frame = series.frame or 1
    hop = series.hop or frame
    counts = frame_counts(samples.lengths, frame, hop)
    longest = int(counts.max())
    if longest > MOST_TOKENS and options.max_length is None:
        raise bad_argument(
            "x", f"at most {MOST_TOKENS:,} vectors a sample", f"{longest:,}",
            "give max_length, or a longer frame and hop",
        )  # fmt: skip
    kept = np.minimum(counts, options.max_length or longest)
    inputs = FrameInputs(
        channels,
        int(kept.max()),
        bool((kept == kept[0]).all()),
        mean,
        std,
        series.missing,
        frame,
        hop,
        series.rate,
        options.max_length is not None,
        columns,
        options.truncate,
    )
    return {
        "input_kind": "vectors",
        "vocab_size": None,
        "num_features": inputs.size,
        "max_length": inputs.max_length,
        "padding": not inputs.fixed,
        "splits": {
            name: UserSplit(samples, labels, division.rows[name], inputs) for name in SPLITS
        },
        "inputs": inputs,
    }


def cut_count(samples: Samples, series: SeriesOptions, most: int | None) -> int:
    """Count the series with more vectors than the maximum length."""
    frame = series.frame or 1
    counts = frame_counts(samples.lengths, frame, series.hop or frame)
    return 0 if most is None else int((counts > most).sum())


def channel_scale(
    samples: Samples, rows: NDArray[np.int64]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation of each channel over all steps of some samples.

    Missing values do not count. A channel without variation has deviation 1.
    """
    channels = samples.values.shape[1]
    count, total, square = np.zeros(channels), np.zeros(channels), np.zeros(channels)
    first = samples[int(rows[0])].astype(np.float64)
    shift = np.nan_to_num(first).mean(axis=0)  # keeps squares small
    for row in rows.tolist():
        values = samples[row].astype(np.float64)
        known = ~np.isnan(values)
        moved = np.where(known, values - shift, 0.0)
        count += known.sum(axis=0)
        total += moved.sum(axis=0)
        square += (moved**2).sum(axis=0)
    count = np.maximum(count, 1)
    mean = total / count
    std = np.sqrt(np.maximum(square / count - mean**2, 0.0))
    std = np.where(std > 0, std, 1.0)
    return tuple((mean + shift).tolist()), tuple(std.tolist())
