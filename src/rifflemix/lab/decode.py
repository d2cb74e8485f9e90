"""Decode JSON values to records: the one place that checks their types."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def decode(kind: type[T], value: Any) -> T:
    """Convert JSON values to a dataclass.

    Args:
        kind: a dataclass whose fields are JSON values, dataclasses, lists or dictionaries.
        value: parsed JSON. Entries that the dataclass does not have are ignored.

    Raises:
        ValueError: an entry is missing or has another type.
    """
    import msgspec

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
