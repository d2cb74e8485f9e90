"""Sequences of different lengths, stored end to end and read in place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rifflemix.lab.tasks.core.base import Sample
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
        values: NDArray[np.uint8 | np.int32] = self.tokens.values[
            start : int(self.ends.values[index])
        ]
        return values

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
        lengths: NDArray[np.int64] = np.minimum(np.concatenate(each)[self.rows], self.max_length)
        return lengths

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
