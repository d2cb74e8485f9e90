"""Convert records to JSON values and back: the one place that checks the types of stored values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from rifflemix.errors import require_packages

T = TypeVar("T")
ABSENT = {"absent": True}
"""Metadata of a field that is None if the file has no such entry."""


def encode(value: Any) -> Any:
    """Convert a record to JSON values for `decode`."""
    if is_dataclass(value):
        return {
            entry.name: encode(inner)
            for entry in fields(value)
            if (inner := getattr(value, entry.name)) is not None or "absent" not in entry.metadata
        }
    if isinstance(value, Mapping):
        return {name: encode(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encode(inner) for inner in value]
    return value


def decode(kind: type[T], value: Any) -> T:
    """Convert JSON values to a record.

    Args:
        kind: a dataclass whose fields are JSON values, dataclasses, lists or dictionaries.
        value: parsed JSON. Entries that the dataclass does not have are ignored.

    Raises:
        ValueError: an entry is missing or has another type, or a number is not finite.
        InputError: msgspec is not installed.
    """
    require_packages("reading results", "compare", "msgspec")
    import msgspec

    _check_finite(value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected finite numbers, got {value}")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_finite(inner)
