"""Numbers of the claims in docs/data/claims.csv, one line per number or list of numbers."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paths import ASSETS, DATA
from store import csv_text

from rifflemix.files import read_json

NUMBERS, PICTURES = DATA / "claims.csv", ASSETS / "claims"
ACCURACY = "accuracy"
# Measurements with a picture on the page.
SHOWN = ("deep-collapse",)
# Suffix of the finished runs of evidence that has further runs to train.
UNFINISHED = "-unfinished"
_STEP = "/"


def stored(name: str) -> dict[str, Any] | None:
    """Read the measurement of some evidence; None if it has not been run."""
    return _stored(NUMBERS).get(name)


def names() -> set[str]:
    """List the measurements."""
    return set(_stored(NUMBERS))


@functools.cache
def _stored(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    if path.is_file():
        csv.field_size_limit(2**24)
        with path.open(encoding="utf-8", newline="") as text:
            for line in csv.DictReader(text):
                content = found.setdefault(line["evidence"], {})
                _put(content, line["key"].split(_STEP), json.loads(line["value"]))
    return {name: _with_lists(content) for name, content in found.items()}


def keep(name: str, content: Mapping[str, Any]) -> None:
    """Store the measurement of some evidence, in place of an earlier or unfinished one."""
    contents = {**_stored(NUMBERS), name: dict(content)}
    contents.pop(name + UNFINISHED, None)
    lines = [
        {"evidence": evidence, "key": key, "value": json.dumps(value, ensure_ascii=False)}
        for evidence in sorted(contents)
        for key, value in _leaves(contents[evidence])
    ]
    NUMBERS.parent.mkdir(exist_ok=True)
    NUMBERS.write_text(csv_text(lines), encoding="utf-8")
    _stored.cache_clear()


def keep_file(path: Path) -> None:
    """Store a JSON file of a measurement."""
    keep(path.stem, read_json(path))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield paths and leaves. A step [N] of a path is an entry of a list of objects."""
    steps: Mapping[str, Any] = {}
    if isinstance(value, dict) and not any(_STEP in key for key in value):
        steps = value
    elif isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        steps = {f"[{number}]": entry for number, entry in enumerate(value)}
    if not steps:
        yield path, value
    for step, inner in steps.items():
        yield from _leaves(inner, f"{path}{_STEP}{step}" if path else step)


def _put(content: dict[str, Any], steps: list[str], value: Any) -> None:
    for step in steps[:-1]:
        content = content.setdefault(step, {})
    content[steps[-1]] = value


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {key: _with_lists(inner) for key, inner in value.items()}
    return list(found.values()) if "[0]" in found else found
