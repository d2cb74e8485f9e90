"""JSON values: texts that are parsed strictly, checks of types, checksums of what was written."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

SEAL = "sha256"
_DEEPEST = 64  # what we write nests less than ten deep


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; the one place where JSON is read.

    Raises:
        ValueError: it is not JSON, has a key twice, nests deeper than any file of ours, or holds
            half of a surrogate pair, which could not be written again.
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
        value.encode()  # half of a surrogate pair is no text
    return ()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a new checksum of its entries, which `check_seal` compares."""
    return {**value, SEAL: content_hash(value)}


def check_seal(value: Any) -> None:
    """Raise ValueError where a sealed object is not what was written; one without a seal passes."""
    if not isinstance(value, dict) or SEAL not in value:
        return
    if value[SEAL] != content_hash(value):
        raise ValueError("its checksum does not match")


def content_hash(value: Mapping[str, Any]) -> str:
    """The checksum of a JSON object's entries, except a checksum among them."""
    unsealed = {name: entry for name, entry in value.items() if name != SEAL}
    return hashlib.sha256(json.dumps(unsealed, sort_keys=True).encode()).hexdigest()


def check_json(value: Any, kind: Any, name: str) -> None:
    """Raise ValueError unless a JSON value is of a type.

    Args:
        value: what was read.
        kind: int, float (a finite number), str, bool, Any, list[...], dict[str, ...], one of these
            or None, or a TypedDict or dataclass, whose entries must all be there; others are
            passed over.
        name: what the sentence calls the value.
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
    """The entries of a TypedDict or dataclass, and their types; of other types none."""
    is_one = typing.is_typeddict(kind) or dataclasses.is_dataclass(kind)
    return typing.get_type_hints(kind) if is_one else {}


def _is_plain(value: Any, kind: Any) -> bool:
    """Whether `value` is a plain one of type `kind`; a bool is no number."""
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is kind


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
