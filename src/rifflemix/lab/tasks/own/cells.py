"""Interpretation of table cells: labels, numbers or texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rifflemix.errors import InputError

# Missing values as written by pandas, R, Excel, SQL and people.
_MISSING = frozenset(
    ("", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "null", "NULL", r"\N", "None", "?")
)
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")  # canonical form of 64-bit integers
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WITH_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")

Where = Callable[[int], str]
"""Function that returns the file and line of a row, for errors."""


def read_label_texts(name: str, texts: Sequence[str], where: Where, kind: str) -> list[Any]:
    """Parse a column of labels as integers, decimal numbers or texts.

    Args:
        name: Name of the column.
        texts: (M,) cells. Surrounding spaces are ignored.
        where: Function that returns the file and line of a row.
        kind: "classification", "regression", or "auto" to decide by the texts.

    Raises:
        InputError: A label is missing, is not a number although most labels are, or is ambiguous.
    """
    texts = [text.strip() for text in texts]
    check_none_missing(name, texts, where)
    if kind == "regression":
        return read_numbers(name, texts, where)
    if _are_whole(texts):
        return [int(text) for text in texts]
    if kind == "classification":
        return texts
    odd = [text for text in texts if not _NUMBER.fullmatch(text)]
    if not odd and _have_points(texts):
        _check_written_alike(name, texts, where)
    elif not odd or not (2 * len(odd) < len(texts) or all(map(_WITH_COMMA.fullmatch, odd))):
        return texts
    return read_numbers(name, texts, where, "; names of classes take kind 'classification'")


def check_none_missing(name: str, labels: Sequence[Any], where: Where) -> None:
    """Raise at the first text that marks a missing label."""
    for row, label in enumerate(labels):
        if isinstance(label, str) and label.strip() in _MISSING:
            raise InputError(
                f"{where(row)}: expected a label in column {name!r}, got {label!r}, which stands "
                "for a missing one; leave the row out, or write a class of that name otherwise"
            )


def read_numbers(name: str, values: Iterable[Any], where: Where, hint: str = "") -> list[float]:
    """Parse a column of numbers.

    Raise at the first invalid cell and append `hint`.
    """
    numbers = []
    for row, value in enumerate(values):
        text = str(value).strip()
        if not _NUMBER.fullmatch(text):
            point = "; write a decimal point, no comma" if _WITH_COMMA.fullmatch(text) else ""
            raise InputError(
                f"{where(row)}: expected a number in column {name!r}, got {value!r}{point}{hint}"
            )
        numbers.append(float(text))
    return numbers


def are_numbers(texts: Sequence[str]) -> bool:
    """Return whether all texts are integers or decimal numbers.

    Decimal numbers need at least one text with a decimal point. Codes such as 007
    are not integers.
    """
    return _are_whole(texts) or (
        _have_points(texts) and all(_NUMBER.fullmatch(text) for text in texts)
    )


def _are_whole(texts: Sequence[str]) -> bool:
    return all(_WHOLE.fullmatch(text) for text in texts)


def _have_points(texts: Sequence[str]) -> bool:
    return any("." in text for text in texts)


def _check_written_alike(name: str, texts: Sequence[str], where: Where) -> None:
    """Raise if two texts equal one number, such as 1.1 and 1.10.

    Such texts are probably versions or chapters.
    """
    seen: dict[float, str] = {}
    for row, text in enumerate(texts):
        number = float(text)
        before = seen.setdefault(number, text)
        if number and before != text:
            raise InputError(
                f"{where(row)}: expected labels that differ as numbers in column {name!r}, got "
                f"{before!r} and {text!r}; give kind 'regression' for numbers, 'classification' "
                "for names of classes"
            )
