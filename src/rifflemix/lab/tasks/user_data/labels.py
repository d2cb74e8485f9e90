"""Labels in user data: classes, numbers, label sets or one class per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rifflemix.checks import shown
from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.tasks.core.arrays import as_numpy, plain_array
from rifflemix.lab.tasks.core.kinds import CLASSIFICATION, MULTILABEL, REGRESSION, TOKENS, Kind
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED


def label_sets(y: Any, count: int) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """Read label sets.

    Args:
        y: (M, K) array or table of 0 and 1, or M lists of names. The column names of a table are
            the names of the labels.
        count: Number of samples M.

    Returns:
        (M, K) bools, and the names of the labels.

    Raises:
        InputError: A value is neither 0 nor 1, or the names have different types.
    """
    names = tuple(map(str, getattr(y, "columns", ())))
    values = plain_array(y)
    is_array = hasattr(y, "shape") or bool(np.isin(values, (0, 1)).all())
    is_table = values.ndim == 2 and values.dtype.kind in "biuf" and is_array
    marks, names = _binary(values, names) if is_table else _named(_rows(y, count))
    if len(marks) != count:
        raise bad_argument("y", f"{count} label sets, one for each sample", len(marks))
    if not marks.any():
        raise bad_argument("y", "at least one label", "none in any sample")
    return marks, names


def _binary(
    values: NDArray[Any], names: tuple[str, ...]
) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    wrong = np.argwhere((values != 0) & (values != 1))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise bad_argument(
            "y", "0 or 1 with kind 'multilabel'",
            f"{shown(values[row, column].item())} for sample {row}, column {column}",
        )  # fmt: skip
    return values.astype(np.bool_), names or tuple(map(str, range(values.shape[1])))


def _named(rows: Sequence[Sequence[Any]]) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    found = sorted(_checked_alike(rows))
    place = {name: column for column, name in enumerate(found)}
    marks = np.zeros((len(rows), len(found)), dtype=np.bool_)
    for row, labels in enumerate(rows):
        for label in labels:
            marks[row, place[label]] = True
    return marks, tuple(map(str, found))


def token_classes(y: Any, count: int) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Read one class per token.

    Args:
        y: M sequences of integers or texts. -100 and None mark tokens that are not scored.
        count: Number of samples M.

    Returns:
        M arrays (N,) int64 of classes from 0, and the names of the classes.

    Raises:
        InputError: A label is negative or has another type, or only one class occurs.
    """
    rows = _rows(y, count)
    scored = [[label for label in row if not _is_unscored(label)] for row in rows]
    found = sorted(_checked_alike(scored))
    for row, labels in enumerate(scored):
        low = next((x for x in labels if not isinstance(x, str) and x < 0), None)
        if low is not None:
            raise bad_argument(
                "y", "classes from 0, or -100 for tokens that are not scored",
                f"{low} in sample {row}",
            )  # fmt: skip
    if len(found) < 2:
        got = f"{shown(found[0])} alone" if found else "no scored token"
        raise bad_argument("y", "at least two classes", got)
    place = {name: index for index, name in enumerate(found)}
    values = np.empty(len(rows), dtype=object)
    for row, labels in enumerate(rows):
        ids = [UNCOUNTED if _is_unscored(label) else place[label] for label in labels]
        values[row] = np.array(ids, dtype=np.int64)
    return values, tuple(map(str, found))


def check_token_counts(values: NDArray[Any], lengths: NDArray[np.int64], unit: str) -> None:
    """Raise unless each sample has one label per token."""
    for row, (labels, length) in enumerate(zip(values, lengths.tolist(), strict=True)):
        if len(labels) != length:
            raise bad_argument(
                "y", f"{length} labels for the {length} {unit} of sample {row}", len(labels)
            )


def cut_to_lengths(y: Any, lengths: NDArray[np.int64]) -> Any:
    """Remove the padding of label rows (M, N) of samples with `lengths` tokens."""
    values = plain_array(y)
    if values.ndim != 2 or len(values) != len(lengths):
        return y
    return [row[:length] for row, length in zip(values, lengths.tolist(), strict=True)]


def _rows(y: Any, count: int) -> list[list[Any]]:
    given = as_numpy(y)
    if isinstance(given, str | bytes | dict | set) or not hasattr(given, "__len__"):
        raise bad_argument("y", f"{count} lists of labels", shown(y))
    if len(given) != count:
        raise bad_argument("y", f"{count} lists of labels, one for each sample", len(given))
    rows = []
    for number, row in enumerate(given):
        values = as_numpy(row)
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise bad_argument("y", "a list of labels", f"{shown(row)} for sample {number}")
        rows.append(values.tolist() if isinstance(values, np.ndarray) else list(values))
    return rows


def _checked_alike(rows: Sequence[Sequence[Any]]) -> set[Any]:
    """Return the distinct labels. Raise unless all are integers or all are texts."""
    found: set[Any] = set()
    first: Any = None
    for number, row in enumerate(rows):
        for label in row:
            if isinstance(label, float) and label.is_integer():
                label = int(label)
            if not isinstance(label, str | int):
                expected = "labels that are integers or texts"
                raise bad_argument("y", expected, f"{shown(label)} in sample {number}")
            first = label if first is None else first
            if isinstance(label, str) != isinstance(first, str):
                got = f"{first!r} and {label!r} (sample {number})"
                raise bad_argument("y", "labels of one type", got)
            found.add(label)
    return found


def _is_unscored(label: Any) -> bool:
    return label is None or (not isinstance(label, str) and label == UNCOUNTED)


def split_cell(text: str, where: str) -> list[str]:
    """Split a table cell of several labels at its separator: ";", "|" or white space.

    Raises:
        InputError: The cell has two kinds of separators.
    """
    used = [mark for mark in ";|" if mark in text]
    if len(used) > 1:
        raise InputError(f"{where}: expected one separator of labels, got {text!r}")
    parts = text.split(used[0]) if used else text.split()
    return [part.strip() for part in parts if part.strip()]


_MOST_EXACT = 1 << 53  # float64 represents all integers up to this one


@dataclass(frozen=True, eq=False)
class Labels:
    """Label of each sample.

    Attributes:
        kind: Kind of the task.
        values: (M,) int64 classes from 0, (M,) or (M, T) float64 numbers, (M, K) bool labels, or
            (M,) arrays (N,) of int64 classes.
        classes: Names of the classes. Empty for numbers.
    """

    kind: Kind
    values: NDArray[Any]
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def are_classes(self) -> bool:
        """True if each sample has one class."""
        return self.kind is CLASSIFICATION

    def occurring(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (K,) bools: whether each class occurs in these samples."""
        values = self.values[rows]
        if self.kind is MULTILABEL:
            return np.asarray(values.any(axis=0))
        if self.kind is TOKENS:
            values = np.concatenate([np.empty(0, dtype=np.int64), *values])
            values = values[values != UNCOUNTED]
        return np.bincount(values, minlength=len(self.classes)) > 0

    def of(self, row: int) -> Any:
        """Return the label of a sample: a number, or a tensor of numbers, labels or classes."""
        value = self.values[row]
        if self.kind is MULTILABEL:
            return torch.from_numpy(value.astype(np.float32))
        return torch.from_numpy(value) if np.ndim(value) else value.item()

    def content(self, row: int) -> bytes:
        """Return the label as bytes, for hashes."""
        value = self.values[row]
        is_array = np.ndim(value) > 0
        return bytes(value.tobytes()) if is_array else f"{value.item()!r}".encode()


def read_labels(y: Any, count: int, kind: Kind) -> Labels:
    """Read the labels `y`, with the arguments and errors of `Task.from_arrays`."""
    if kind is TOKENS:
        return Labels(kind, *token_classes(y, count))
    if kind is MULTILABEL:
        return Labels(kind, *label_sets(y, count))
    texts = _text_classes(y, count) if kind is CLASSIFICATION else None
    if texts is not None:
        return texts
    values = _as_array(y, count, several=kind is REGRESSION)
    return Labels(kind, _numbers(values)) if kind is REGRESSION else _classes(values)


def _text_classes(y: Any, count: int) -> Labels | None:
    """Read texts as classes. NumPy would copy and sort each text. Return None for other labels."""
    given = as_numpy(y)
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "OU":
        given = given.tolist()
    if not isinstance(given, list | tuple) or len(given) != count:
        return None
    try:
        found = set(given)
    except TypeError:  # lists
        return None
    if not all(isinstance(name, str) for name in found):
        return None
    names = sorted(found)
    place = {name: number for number, name in enumerate(names)}
    return _labels_of(names, np.fromiter(map(place.__getitem__, given), np.int64, count))


def _as_array(y: Any, count: int, *, several: bool) -> NDArray[Any]:
    given = as_numpy(y)
    if isinstance(given, str | bytes | dict | set) or not hasattr(given, "__len__"):
        raise bad_argument("y", f"{count} labels", shown(y))
    if not isinstance(given, np.ndarray):
        given = [as_numpy(label) for label in given]
        _check_one_type(given, bool)  # NumPy would convert bools to 0 and 1
    try:
        values = np.asarray(given)
    except ValueError:
        hint = "label sets are kind 'multilabel', one class per token is kind 'tokens'"
        got = "lists of unequal length"
        raise bad_argument("y", "one label for each sample", got, hint) from None
    if not isinstance(given, np.ndarray) and values.dtype.kind in "fO":
        _check_sizes(given)
    if values.dtype.kind == "O" and values.ndim == 1:  # from pandas, or mixed types
        values = _of_one_type(values.tolist())
    if values.shape == (count, 1):
        values = values[:, 0]
    is_table = several and values.ndim == 2 and len(values) == count and values.size > 0
    if values.shape != (count,) and not is_table:
        raise bad_argument("y", f"{count} labels, one for each sample", f"shape {values.shape}")
    if values.dtype.kind not in "biufU":
        got = f"{type(values.ravel()[0]).__name__} for sample 0"
        raise bad_argument("y", "integers, floats or texts", got, "convert the labels first")
    is_mixed = values.dtype.kind == "U" and isinstance(given, list)
    return _of_one_type(given) if is_mixed and values.ndim == 1 else values


def _check_sizes(labels: list[Any]) -> None:
    """Raise at integers that need more than 64 bits.

    NumPy would convert them to floats.
    """
    for number, label in enumerate(labels):
        if isinstance(label, int) and not -(2**63) <= label < 2**63:
            raise bad_argument(
                "y", "whole numbers of 64 bits", f"{shown(label)} for sample {number}",
                "names of classes are texts",
            )  # fmt: skip


def _check_one_type(labels: list[Any], kind: type) -> None:
    """Raise if some labels are of this type and others are not."""
    for number, label in enumerate(labels):
        if isinstance(label, kind) != isinstance(labels[0], kind):
            raise bad_argument(
                "y", "labels of one type", f"{labels[0]!r} and {label!r} (sample {number})"
            )


def _of_one_type(labels: list[Any]) -> NDArray[Any]:
    """Convert labels to an array. Raise if texts and numbers are mixed."""
    for number, label in enumerate(labels):
        if label is None:
            raise bad_argument("y", "a label for each sample", f"None for sample {number}")
    _check_one_type(labels, str)
    return np.asarray(labels)


def _numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    """Convert targets (M,) or (M, T) to finite numbers that differ."""
    try:
        numbers = values.astype(np.float64)
    except ValueError:
        flat = values.ravel().tolist()
        place = next(place for place, value in enumerate(flat) if not _is_number(value))
        got = f"{str(flat[place])!r} for sample {place * len(values) // values.size}"
        raise bad_argument("y", "numbers for regression", got) from None
    most = float(np.finfo(np.float32).max)
    wrong = np.argwhere(~(np.abs(numbers) <= most))
    if len(wrong):
        got = numbers[tuple(wrong[0])]
        raise bad_argument("y", "finite numbers", f"{got} for sample {wrong[0][0]}")
    for column, targets in enumerate(numbers.reshape(len(numbers), -1).T):
        if len(set(targets.tolist())) < 2:
            where = f" in column {column}" if numbers.ndim > 1 else ""
            raise bad_argument(
                "y", "numbers that differ", f"{targets[0]:g} for every sample{where}"
            )
    return numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _classes(values: NDArray[Any]) -> Labels:
    if values.dtype.kind == "f":
        # NaN is not equal to itself. Larger floats represent several integers.
        is_whole = (values == np.round(values)) & (np.abs(values) <= _MOST_EXACT)
        wrong = np.flatnonzero(~is_whole)
        if len(wrong):
            row = int(wrong[0])
            raise bad_argument(
                "y", "whole numbers or texts with kind 'classification'",
                f"{values[row]} for sample {row}",
            )  # fmt: skip
        values = values.astype(np.int64)
    return _labels_of(*_numbered(values))


def _numbered(values: NDArray[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the different values in order, and the place of each value among them."""
    if values.dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        if high - low < len(values):  # counting is faster than sorting
            wide = values if values.dtype.kind == "u" else values.astype(np.int64)
            offsets = (wide - wide.dtype.type(low)).astype(np.int64)
            occurs = np.bincount(offsets) > 0
            place = np.cumsum(occurs) - 1
            return [low + offset for offset in np.flatnonzero(occurs).tolist()], place[offsets]
    found, numbers = np.unique(values, return_inverse=True)
    return found.tolist(), numbers.astype(np.int64).reshape(-1)


def _labels_of(found: Sequence[Any], numbers: NDArray[np.int64]) -> Labels:
    """Return labels from the classes and the number of the class of each sample."""
    if len(found) < 2:
        raise bad_argument("y", "at least two classes", f"{shown(found[0])} alone")
    if len(found) == len(numbers) and len(numbers) > 2:
        raise bad_argument(
            "y", "classes with several samples each", f"{len(found):,} different labels",
            "numbers to be predicted are floats, or kind='regression'",
        )  # fmt: skip
    return Labels(CLASSIFICATION, numbers, tuple(map(str, found)))


def without_labels(kind: Kind, count: int) -> Labels:
    """Return placeholders for the labels of `count` samples."""
    return Labels(kind, np.zeros(count, dtype=np.int64))
