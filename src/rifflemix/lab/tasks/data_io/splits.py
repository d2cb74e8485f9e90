"""Splits: sequences stored end to end, first samples, and inputs that several splits contain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from rifflemix.lab.tasks.core.base import SPLITS, Sample, Split, Task
from rifflemix.lab.tasks.data_io.files import Array, Arrays


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """Sequences of bytes or token ids, with labels.

    Attributes:
        tokens: (total,) uint8 or int32, all sequences end to end.
        ends: (M,) int64, end of each sequence.
        labels: (M,) uint8.
    """

    tokens: Array
    ends: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.ends.values)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the sequences as bytes."""
        return (self.row(index).tobytes() for index in range(len(self)))

    def row(self, index: int) -> NDArray[np.uint8 | np.int32]:
        """Return one sequence."""
        start = int(self.ends.values[index - 1]) if index else 0
        return self.tokens.values[start : int(self.ends.values[index])]

    def longest(self) -> int:
        """Return the length of the longest sequence, or 0 without sequences."""
        return int(np.diff(self.ends.values, prepend=0).max(initial=0))


@dataclass(frozen=True, eq=False)
class RaggedSplit:
    """Selected sequences of one or more packed parts, in a given order.

    Attributes:
        parts: Parts with consecutive row numbers.
        rows: Row numbers of the sequences in the split, in order.
        max_length: Maximum length. Longer sequences are cut.
        first_id: Offset added to bytes or ids: the token id of byte 0.
    """

    parts: tuple[RaggedRows, ...]
    rows: NDArray[np.int64]
    max_length: int
    first_id: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return the token ids (N,) int64 and the label."""
        values, label = self._row(int(self.rows[index]))
        return torch.from_numpy(values.astype(np.int64) + self.first_id), label

    def lengths(self) -> NDArray[np.int64]:
        """Return the length of each sequence, (S,)."""
        each = [np.diff(part.ends.values, prepend=0) for part in self.parts]
        return np.minimum(np.concatenate(each)[self.rows], self.max_length)

    def digest(self) -> bytes:
        """Hash the sequences and labels of the split, in order."""
        total = hashlib.blake2b(digest_size=16)
        for row in self.rows.tolist():
            values, label = self._row(row)
            total.update(f"{len(values)},{label};".encode())
            total.update(values.tobytes())
        return total.digest()

    def _row(self, row: int) -> tuple[NDArray[np.uint8 | np.int32], int]:
        for part in self.parts:
            if row < len(part):
                return part.row(row)[: self.max_length], int(part.labels.values[row])
            row -= len(part)
        raise IndexError("row out of range")


def to_ragged(rows: Iterable[tuple[bytes, int]]) -> Arrays:
    """Pack sequences and labels into arrays "tokens", "ends" and "labels".

    See `RaggedRows` for shapes.
    """
    tokens = bytearray()
    ends: list[int] = []
    labels: list[int] = []
    for row, label in rows:
        tokens += row
        ends.append(len(tokens))
        labels.append(label)
    return {
        "tokens": np.frombuffer(bytes(tokens), dtype=np.uint8),
        "ends": np.array(ends, dtype=np.int64),
        "labels": np.array(labels, dtype=np.uint8),
    }


def to_ragged_parts(parts: Mapping[str, Iterable[tuple[bytes, int]]]) -> Arrays:
    """Pack several parts, with part names as prefixes of array names."""
    return {
        f"{part}_{name}": values
        for part, rows in parts.items()
        for name, values in to_ragged(rows).items()
    }


def ragged_rows(arrays: Mapping[str, Array], prefix: str = "") -> RaggedRows:
    """Wrap arrays of `to_ragged`, or of a `to_ragged_parts` part with `prefix` "part_"."""
    return RaggedRows(*(arrays[f"{prefix}{name}"] for name in ("tokens", "ends", "labels")))


@dataclass(frozen=True, eq=False)
class FirstSamples:
    """First `most` samples of a split, or a complete shorter split."""

    split: Split
    most: int

    def __len__(self) -> int:
        return min(len(self.split), self.most)

    def __getitem__(self, index: int) -> Sample:
        return self.split[range(len(self))[index]]

    def digest(self) -> bytes:
        """Hash the whole split and the number of samples in use."""
        return hashlib.blake2b(self.split.digest() + b"%d" % len(self), digest_size=16).digest()


def first_samples(task: Task, most: int) -> Task:
    """Keep the first samples of each split, also of each fold."""
    first, make_fold = partial(FirstSamples, most=most), task.make_fold
    return replace(
        task,
        options={**task.options, "max_samples": most},
        splits={name: first(split) for name, split in task.splits.items()},
        further_tests={name: first(split) for name, split in task.further_tests.items()},
        make_fold=None if make_fold is None else partial(_first_of_fold, make_fold, most),
    )


def _first_of_fold(make_fold: Callable[[int], Task], most: int, fold: int) -> Task:
    return first_samples(make_fold(fold), most)


_MOST_BITS = 26  # a table of 64 MB


def duplicates_across_splits(hashes: Mapping[str, Iterable[int] | NDArray[np.int64]]) -> str:
    """Report how many inputs each split shares with earlier splits.

    Return an empty text if no inputs are shared.

    Args:
        hashes: Hashes of the inputs of each split.
    """
    seen = np.empty(0, dtype=np.int64)
    found = []
    for name in SPLITS:
        given = hashes[name]
        here = given if isinstance(given, np.ndarray) else np.fromiter(given, dtype=np.int64)
        count = _count_known(here, seen)
        if count:
            found.append(f"{count:,} of {name}")
        seen = np.concatenate((seen, here))
    if not found:
        return ""
    return f"inputs that an earlier split holds too: {' and '.join(found)}"


def _count_known(here: NDArray[np.int64], seen: NDArray[np.int64]) -> int:
    """Count the entries of `here` that are in `seen`. np.isin is slower for millions of entries."""
    if not len(here) or not len(seen):
        return 0
    # A table of the lowest bits excludes most entries faster than a search.
    mask = (1 << min((8 * len(here)).bit_length(), _MOST_BITS)) - 1
    is_possible = np.zeros(mask + 1, dtype=bool)
    is_possible[here & mask] = True
    possible = seen[is_possible[seen & mask]]
    ordered = np.sort(here)
    places = np.minimum(np.searchsorted(ordered, possible), len(ordered) - 1)
    known = np.zeros(len(ordered), dtype=bool)
    known[places[ordered[places] == possible]] = True  # the first of equal entries
    return int(known[np.searchsorted(ordered, ordered)].sum())
