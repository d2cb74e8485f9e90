"""JSON values: strict parsing, type checks, checksums, and conversion of records."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from rifflemix.errors import require_packages

SEAL = "sha256"
_DEEPEST = 64  # files of rifflemix have fewer than ten levels


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text. All of rifflemix reads JSON with this function.

    Raises:
        ValueError: the text is not JSON, has a duplicate key, has more than 64 levels, or contains
            a lone surrogate, which cannot be encoded.
    """
    try:
        value = json.loads(text, object_pairs_hook=_with_each_key_once)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    layer: list[Any] = [value]
    for _ in range(_DEEPEST):
        layer = [inner for outer in layer for inner in _parts(outer)]
        if not layer:
            return value
    raise ValueError(f"it nests deeper than {_DEEPEST} levels")


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"it has a key twice, of {', '.join(found)[:80]}")
    return found


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        value.encode()  # raises for a lone surrogate
    return ()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum of the entries to a JSON object, for `check_seal`."""
    return {**value, SEAL: content_hash(value)}


def check_seal(value: Any) -> None:
    """Raise ValueError if an object has a wrong checksum.

    Objects without a checksum pass.
    """
    if not isinstance(value, dict) or SEAL not in value:
        return
    if value[SEAL] != content_hash(value):
        raise ValueError("its checksum does not match")


def content_hash(value: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object's entries, except the checksum entry."""
    unsealed = {name: entry for name, entry in value.items() if name != SEAL}
    return hashlib.sha256(json.dumps(unsealed, sort_keys=True).encode()).hexdigest()


def check_json(value: Any, kind: Any, name: str) -> None:
    """Raise ValueError unless a JSON value has the given type.

    Args:
        value: the parsed value.
        kind: int, float (a finite number), str, bool, Any, list[...], dict[str, ...], or one of
            these or None. Also a TypedDict or dataclass: the value needs all of its entries, and
            extra entries are ignored.
        name: name of the value in the message.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return
    if origin in (typing.Union, types.UnionType):
        if value is not None:
            check_json(value, parts[0], name)
    elif origin is list and isinstance(value, list):
        for index, inner in enumerate(value):
            check_json(inner, parts[0], f"{name}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, inner in value.items():
            check_json(inner, parts[1], f"{name}.{key}")
    elif (entries := _entries(kind)) and isinstance(value, dict):
        for entry, inner_kind in entries.items():
            if entry not in value:
                raise ValueError(f"expected an entry {name}.{entry}, got none")
            check_json(value[entry], inner_kind, f"{name}.{entry}")
    elif not _is_plain(value, kind):
        wanted = "a list" if origin is list else _KINDS.get(kind, "an object")
        raise ValueError(f"expected {name} as {wanted}, got {_cut(value)}")


_KINDS = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}


@functools.cache
def _entries(kind: Any) -> Mapping[str, Any]:
    """Return the entry types of a TypedDict or dataclass, else {}."""
    is_one = typing.is_typeddict(kind) or dataclasses.is_dataclass(kind)
    return typing.get_type_hints(kind) if is_one else {}


def _is_plain(value: Any, kind: Any) -> bool:
    """Return whether `value` has exactly type `kind`; a bool is not a number."""
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is kind


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


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
