"""Labels in user data: classes or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import shown
from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.own.samples import as_numpy

KINDS = ("auto", "classification", "regression")
_MOST_CLASSES = 1 << 16
_MOST_EXACT = 1 << 53  # float64 represents all integers up to this one


@dataclass(frozen=True, eq=False)
class Labels:
    """Label of each sample.

    Attributes:
        values: (M,) int64 classes from 0, or float64 numbers.
        classes: Names of the classes. Empty for regression.
    """

    values: NDArray[Any]
    classes: tuple[str, ...] = ()

    @property
    def are_classes(self) -> bool:
        """True for classification, False for regression."""
        return bool(self.classes)


def read_labels(y: Any, count: int, kind: str = "auto") -> Labels:
    """Read the labels `y`, with the arguments and errors of `Task.from_arrays`."""
    check_choice("kind", kind, KINDS)
    values = _as_array(y, count)
    is_number = values.dtype.kind == "f" if kind == "auto" else kind == "regression"
    return _numbers(values) if is_number else _classes(values, kind)


def _as_array(y: Any, count: int) -> NDArray[Any]:
    given = as_numpy(y)
    if isinstance(given, str | bytes | dict) or not hasattr(given, "__len__"):
        raise bad_argument("y", f"{count} labels", shown(y))
    if not isinstance(given, np.ndarray):
        given = [as_numpy(label) for label in given]
        _check_truths(given)
    try:
        values = np.asarray(given)
    except ValueError:
        raise bad_argument("y", "one label for each sample", "lists of unequal length") from None
    if not isinstance(given, np.ndarray) and values.dtype.kind in "fO":
        _check_sizes(given)
    if values.dtype.kind == "O":  # from pandas, or mixed types
        values = _of_one_type(values.tolist())
    if values.shape == (count, 1):
        values = values[:, 0]
    if values.shape != (count,):
        raise bad_argument("y", f"{count} labels, one for each sample", f"shape {values.shape}")
    if values.dtype.kind not in "biufU":
        raise bad_argument("y", "integers, floats or texts", values.dtype)
    is_mixed = values.dtype.kind == "U" and isinstance(given, list)
    return _of_one_type(given) if is_mixed else values


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


def _check_truths(labels: list[Any]) -> None:
    """Raise if bools and numbers are mixed.

    NumPy would convert the bools to 0 and 1.
    """
    for number, label in enumerate(labels):
        if isinstance(label, bool) != isinstance(labels[0], bool):
            raise bad_argument(
                "y", "labels of one type", f"{labels[0]!r} and {label!r} (sample {number})"
            )


def _of_one_type(labels: list[Any]) -> NDArray[Any]:
    """Convert labels to an array. Raise if texts and numbers are mixed."""
    for number, label in enumerate(labels):
        if label is None:
            raise bad_argument("y", "a label for each sample", f"None for sample {number}")
        if isinstance(label, str) != isinstance(labels[0], str):
            raise bad_argument(
                "y", "labels of one type", f"{labels[0]!r} and {label!r} (sample {number})"
            )
    return np.asarray(labels)


def _numbers(values: NDArray[Any]) -> Labels:
    try:
        numbers = values.astype(np.float64)
    except ValueError:
        row = next(row for row, value in enumerate(values.tolist()) if not _is_number(value))
        got = f"{str(values[row])!r} for sample {row}"
        raise bad_argument("y", "numbers for regression", got) from None
    most = float(np.finfo(np.float32).max)
    wrong = np.flatnonzero(~(np.abs(numbers) <= most))
    if len(wrong):
        row = int(wrong[0])
        raise bad_argument("y", "finite numbers", f"{numbers[row]} for sample {row}")
    if len(set(numbers.tolist())) < 2:
        raise bad_argument("y", "numbers that differ", f"{numbers[0]:g} for every sample")
    return Labels(numbers)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _classes(values: NDArray[Any], kind: str) -> Labels:
    if values.dtype.kind == "f":
        # NaN is not equal to itself. Larger floats represent several integers.
        is_whole = (values == np.round(values)) & (np.abs(values) <= _MOST_EXACT)
        wrong = np.flatnonzero(~is_whole)
        if len(wrong):
            row = int(wrong[0])
            raise bad_argument(
                "y", f"whole numbers or texts with kind {kind!r}", f"{values[row]} for sample {row}"
            )
        values = values.astype(np.int64)
    found, numbers = np.unique(values, return_inverse=True)
    if len(found) < 2:
        raise bad_argument("y", "at least two classes", f"{shown(found[0].item())} alone")
    if len(found) == len(values) and len(values) > 2:
        raise bad_argument(
            "y", "classes with several samples each", f"{len(found):,} different labels",
            "numbers to be predicted are floats, or kind='regression'",
        )  # fmt: skip
    if len(found) > _MOST_CLASSES:
        raise bad_argument("y", f"at most {_MOST_CLASSES:,} classes", f"{len(found):,}")
    return Labels(numbers.astype(np.int64).reshape(-1), tuple(str(name) for name in found.tolist()))
