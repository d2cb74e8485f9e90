"""Read benchmark result files, including earlier formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.files import read_json
from rifflemix.lab.bench.rows import FORMAT, LAYER, Row, Shape, Timing
from rifflemix.lab.bench.scaling import TOKENS, growth

_BY_NAME = "rifflemix.bench/1"


def read_result(path: Path) -> dict[str, Any]:
    """Read a benchmark result and convert it to the current format.

    Format 1 used one growth curve for a mixer and a package with the same name. This function
    recomputes the growth from the rows, because each row stores its kind.

    Raises:
        InputError: the file cannot be read, or it is not a benchmark result.
    """
    content = read_json(path, "run the benchmark again")
    result: dict[str, Any] = content if isinstance(content, dict) else {}
    written = result.get("format")
    if written not in (FORMAT, _BY_NAME):
        raise InputError(f"{path}: expected results of `rifflemix bench`, got format {written!r}")
    if written == _BY_NAME and "growth" in result:
        claims = {
            entry["name"]: entry["claimed_exponent"]
            for entry in result["growth"]
            if entry["kind"] == LAYER
        }
        rows = [_row(entry) for entry in result["rows"]]
        result["growth"] = growth(rows, claims, result["settings"].get("axis", TOKENS))
    return result | {"format": FORMAT}


def _row(entry: Mapping[str, Any]) -> Row:
    """Build a row with the fields that `growth` needs."""
    shape, passes = Shape(**entry["shape"]), entry["passes"]
    timings = {name: Timing(**timed) for name, timed in passes.items()}
    return Row(entry["kind"], entry["name"], entry["backend"], shape, passes=timings)
