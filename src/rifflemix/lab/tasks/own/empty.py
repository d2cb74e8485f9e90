"""Removal of empty samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.own.samples import as_numpy, plain_array
from rifflemix.lab.tasks.own.splitting import split_of_rows


@dataclass(frozen=True, eq=False)
class Given:
    """Arguments of `Task.from_arrays` that have one value per sample.

    Attributes:
        x, y, lengths, groups, split: Same as in `Task.from_arrays`.
        dropped: Number of removed samples.
    """

    x: Any
    y: Any
    lengths: Any
    groups: Any
    split: Any
    dropped: int = 0

    def without_empty(self) -> Given:
        """Remove empty texts, empty sequences and samples of length 0."""
        x = as_numpy(self.x)
        if isinstance(x, str | bytes | dict) or not hasattr(x, "__len__"):
            return self  # `read_samples` raises for it
        if self.lengths is not None:
            empty = plain_array(self.lengths) == 0
        else:
            empty = np.array([_is_empty(sample) for sample in x], dtype=bool)
        rows = np.flatnonzero(~empty)
        if empty.shape != (len(x),) or len(rows) == len(x):
            return self
        if not len(rows):
            raise bad_argument("x", "at least one sample with a token", f"{len(x)} empty samples")

        def kept(name: str, values: Any) -> Any:
            return None if values is None else _rows_of(name, as_numpy(values), rows, len(x))

        return Given(
            kept("x", x),
            kept("y", self.y),
            kept("lengths", self.lengths),
            kept("groups", self.groups),
            split_of_rows(self.split, rows, len(x)),
            len(x) - len(rows),
        )


def _is_empty(sample: Any) -> bool:
    return hasattr(sample, "__len__") and getattr(sample, "ndim", 1) > 0 and len(sample) == 0


def _rows_of(name: str, values: Any, rows: NDArray[np.int64], count: int) -> Any:
    if not hasattr(values, "__len__") or len(values) != count:
        got = len(values) if hasattr(values, "__len__") else type(values).__name__
        raise bad_argument(name, f"{count} values, one for each sample", got)
    if isinstance(values, np.ndarray):
        return values[rows]
    return [values[row] for row in rows.tolist()]
