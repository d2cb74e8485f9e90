"""Read and write results as CSV files: one file per kind, one line per run or timing.

`sources.csv` has one line per result with its command, commit, machine and settings. The other
files have the rows of all results. `curves.csv` has learning curves of at most 100 points.
README.md describes the columns.
"""

from __future__ import annotations

import copy
import csv
import functools
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"
POINTS = 100
Line = dict[str, str]
Leaves = dict[str, Any]

# Raw numbers that no table needs: single timings, checks before a timing, curves and checksums.
_DROPPED = {"gate", "times", "train_curve", "validation_curve", "sha256"}
_SHARED = {"environment", "format", "command"}  # these entries have separate columns
_SOURCES, _CURVES = "sources", "curves"
_KEY = ("result", "record", "task", "machine", "command", "commit", "data_hash")


@dataclass(frozen=True)
class Format:
    """Storage of one raw format.

    Attributes:
        file: name of the CSV file.
        records: dotted paths of lists. Each entry is a line. "" is the whole document.
        depth: levels of nested objects that become columns. Deeper levels are JSON in a cell.
    """

    file: str
    records: Sequence[str] = ("rows",)
    depth: int = 3


FORMATS: Mapping[str, Format] = {
    "rifflemix.compare/1": Format(
        "accuracy", ("mixers", "runs", "failed_runs", "tuning.trials", "tuning.failed_trials")
    ),
    "rifflemix.suite/1": Format("accuracy", ("mixers",)),
    "rifflemix.conversion-recall/1": Format("conversion"),
    "rifflemix.conversion-study/1": Format("conversion"),
    "rifflemix.conversion-vit/1": Format("conversion"),
    "rifflemix.tssa-lengths/1": Format("accuracy"),
    "rifflemix.reproduce/1": Format("reproduced", ("",), 2),
    "rifflemix.sweep/1": Format("reproduced", ("runs", "failed_runs"), 2),
    "rifflemix.bench/2": Format("speed", ("rows", "growth")),
    "rifflemix.device-times/1": Format("speed"),
    "rifflemix.layer-times/1": Format("speed"),
    "rifflemix.packed/1": Format("speed"),
    "rifflemix-attack-1": Format("reliability", ("tests",)),
    "rifflemix.sanitize/1": Format("reliability", ("",), 1),
}
_BENCH_FILES = {"scaling": "scaling", "models": "models", "lra": "models", "published": "models"}


@dataclass(frozen=True)
class Result:
    """One stored result.

    Attributes:
        name: group and file name of the raw result, such as "suites/lra-small/text".
        path: CSV file with the rows.
        content: the raw result without the numbers that are not stored.
    """

    name: str
    path: Path
    content: dict[str, Any]


def names(pattern: str = "*") -> list[str]:
    """List the results with names that match a pattern, the oldest measurement first."""
    found = [
        (line.get("environment.time", ""), name)
        for name, (line,) in _lines_by_name(_SOURCES).items()
        if fnmatch(name, pattern)
    ]
    return [name for _, name in sorted(found)]


def newest(pattern: str) -> Result:
    """Read the newest result with a name that matches a pattern."""
    return load(names(pattern)[-1])


@functools.cache
def load(name: str) -> Result:
    """Read one result.

    Raises:
        KeyError: no result has this name.
    """
    header = {key: _value(cell) for key, cell in _lines_by_name(_SOURCES)[name][0].items()}
    file = header.pop("table")
    empty = {record: [] for record in header.pop("empty", ())}
    content = _nested({k: v for k, v in header.items() if k not in ("result", "commit")} | empty)
    if {"environment", "command"} <= content.keys():
        content["environment"]["command"] = content["command"]
    shared = {key: value for key, value in header.items() if key.startswith("environment.")}
    for line in _lines_by_name(file).get(name, ()):
        _add(content, line, shared)
    return Result(name, FOLDER / f"{file}.csv", content)


def _add(content: dict[str, Any], line: Line, shared: Leaves) -> None:
    """Add the entry of a line to a document; its environment completes the shared one."""
    record = line.get("record", "")
    leaves = {key: _value(cell) for key, cell in line.items() if key not in _KEY}
    if record and any(key.startswith("environment.") for key in leaves):
        leaves = {**shared, "environment.command": _value(line.get("command", '""')), **leaves}
    entry = _nested(leaves)
    curves = _curves_of(line["result"], entry.get("folder", ""))
    train, validation = (curves.get(name, []) for name in ("train", "validation"))
    if not record:
        content |= entry
        if "result" in content:
            content["result"]["validation"] = validation
            content["train_curve"] = train
        return
    if "folder" in entry and "wall_seconds" in entry:
        entry |= {"validation_curve": validation, "train_curve": train}
    inner, last = _parent(content, record)
    inner.setdefault(last, []).append(entry)


def keep(name: str, content: Mapping[str, Any]) -> None:
    """Store a raw result under a name, in place of an earlier one of that name.

    Raises:
        KeyError: the format of the result is not stored.
    """
    form = FORMATS[content["format"]]
    if content.get("benchmark") in _BENCH_FILES:
        form = replace(form, file=_BENCH_FILES[content["benchmark"]])
    rest = copy.deepcopy(dict(content))
    lists = {record: _taken(rest, record) for record in form.records}
    environment = content.get("environment", {})
    source = {
        "result": name, "table": form.file, "format": content["format"],
        "command": content.get("command", environment.get("command", "")),
        "commit": _commit(environment), **_columns(environment),
        **{key: value for key, value in rest.items() if key not in {"sha256", *_SHARED}},
        "empty": [record for record, entries in lists.items() if entries == []],
    }  # fmt: skip
    rows = [
        _row(name, record, entry, content, form.depth)
        for record, entries in lists.items()
        for entry in entries or ()
    ]
    _replace(_SOURCES, name, [source])
    _replace(form.file, name, rows)
    _replace(_CURVES, name, list(_curves(name, content)))


def _taken(content: dict[str, Any], record: str) -> Any:
    """Remove a list from a document and return it; the whole document for ""."""
    if not record:
        entry = dict(content)
        content.clear()
        return [entry]
    *parents, last = record.split(".")
    for key in parents:
        content = content.get(key, {})
    return content.pop(last, None)


def _row(
    name: str, record: str, entry: Mapping[str, Any], content: Mapping[str, Any], depth: int
) -> Leaves:
    """Return the line of an entry, with its command, commit and the hash of its data."""
    here, task = content.get("environment", {}), content.get("task", {})
    environment = entry.get("environment", here)
    hardware = environment.get("hardware")
    machine = hardware and (hardware["gpu"] or f"{hardware['cpu']}, {hardware['threads']} threads")
    keys = (
        name, record, task.get("name", ""), machine or "",
        environment.get("command", content.get("command", "")), _commit(environment),
        task.get("fingerprint", entry.get("data", "")),
    )  # fmt: skip
    line: Leaves = dict(zip(_KEY, keys, strict=True))
    if record and "environment" in entry:
        shared = _columns(here)
        line["environment.time"] = environment["time"]
        line |= {k: value for k, value in _columns(environment).items() if value != shared.get(k)}
    kept = {key: value for key, value in entry.items() if key not in _DROPPED | _SHARED}
    return line | flat(_measured(kept), depth)


def _commit(environment: Mapping[str, Any]) -> str:
    return str(environment.get("git_commit") or "")[:12]


def _columns(environment: Mapping[str, Any]) -> Leaves:
    leaves = {f"environment.{key}": value for key, value in flat(environment, 2).items()}
    return {key: value for key, value in leaves.items() if key != "environment.command"}


def _measured(value: Any, is_time: bool = False) -> Any:
    """Round times to eight digits, and drop single timings and `_DROPPED`."""
    if isinstance(value, float) and is_time:
        return float(f"{value:.8g}")
    if not isinstance(value, dict):
        return value
    return {
        key: _measured(inner, is_time or "second" in key or key == "passes")
        for key, inner in value.items()
        if key not in _DROPPED and not (key == "seconds" and isinstance(inner, list))
    }


# Nested objects as columns.


def flat(value: Any, depth: int, path: str = "") -> Leaves:
    """Return {dotted path: leaf} of nested objects, down to a depth."""
    is_plain = isinstance(value, dict) and value and not any("." in key for key in value)
    if depth == 0 or not is_plain:
        return {path: value}
    leaves: Leaves = {}
    for key, inner in value.items():
        leaves |= flat(inner, depth - 1, f"{path}.{key}" if path else key)
    return leaves


def _nested(leaves: Leaves) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for path, value in leaves.items():
        inner, last = _parent(content, path)
        inner[last] = value
    return content


def _parent(content: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the object that contains an entry, and the key of the entry."""
    *parents, last = path.split(".")
    for key in parents:
        content = content.setdefault(key, {})
    return content, last


# Learning curves.


def _curves(name: str, content: Mapping[str, Any]) -> Iterator[Leaves]:
    """Yield one line per metric of the curves of a reproduction or of a comparison's runs."""
    if "result" in content and "train_curve" in content:
        found = [("", content["train_curve"], content["result"]["validation"])]
    else:
        found = [(run["folder"], run["train_curve"], run["validation_curve"])
                 for run in content.get("runs", ()) if "train_curve" in run]  # fmt: skip
    for run, train, validation in found:
        for curve, points, digits in (("train", train, 4), ("validation", validation, 6)):
            kept = thinned(points)
            for metric in kept[0] if kept else ():
                if metric not in ("step", "lr"):
                    yield {
                        "result": name, "run": run, "curve": curve, "metric": metric,
                        "steps": _steps([int(point["step"]) for point in kept]),
                        "values": " ".join(f"{point[metric]:.{digits}g}" for point in kept),
                    }  # fmt: skip


def thinned(points: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Return at most `POINTS` points of a curve, with the first, the best and the last one."""
    if len(points) <= POINTS:
        return list(points)
    last = len(points) - 1
    kept = {round(number * last / (POINTS - 2)) for number in range(POINTS - 1)}
    best = max(range(len(points)), key=lambda i: points[i].get("accuracy", -points[i]["loss"]))
    return [points[number] for number in sorted(kept | {best})]


def _curves_of(name: str, run: str) -> dict[str, list[dict[str, float]]]:
    curves: dict[str, list[dict[str, float]]] = {}
    for line in _lines_by_name(_CURVES).get(name, ()):
        if _value(line.get("run", '""')) != run:
            continue
        steps = _steps_of(str(_value(line["steps"])))
        points = curves.setdefault(line["curve"], [{"step": step} for step in steps])
        for point, value in zip(points, str(_value(line["values"])).split(), strict=True):
            point[line["metric"]] = float(value)
    return curves


def _steps(steps: Sequence[int]) -> str:
    """Return "FIRST:LAST:EVERY" for steps at equal distances, else all of them."""
    every = steps[1] - steps[0] if len(steps) > 1 else 1
    if list(steps) == list(range(steps[0], steps[-1] + 1, every)):
        return f"{steps[0]}:{steps[-1]}:{every}"
    return " ".join(map(str, steps))


def _steps_of(text: str) -> list[int]:
    if ":" in text:
        first, last, every = map(int, text.split(":"))
        return list(range(first, last + 1, every))
    return [int(step) for step in text.split()]


# CSV files.


def _cell(value: Any) -> str:
    """Return JSON; of a string that is no JSON value the bare string."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"cell: expected a finite number, got {value}")
    if isinstance(value, str) and value == _value(value or "0"):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


@functools.cache
def _lines_by_name(file: str) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in csv_lines(FOLDER / f"{file}.csv"):
        kept = {key: cell for key, cell in line.items() if cell}
        found.setdefault(_value(line["result"]), []).append(kept)
    return found


def csv_lines(path: Path) -> list[Line]:
    """Read the lines of a CSV file; none if there is no file."""
    if not path.is_file():
        return []
    csv.field_size_limit(2**24)
    with path.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def csv_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """Format lines as CSV with the union of their columns."""
    lines = list(lines)
    text = io.StringIO()
    headers = dict.fromkeys(key for line in lines for key in line)
    writer = csv.DictWriter(text, headers, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _replace(file: str, name: str, rows: Iterable[Leaves]) -> None:
    """Write a CSV file with other rows for one result."""
    new = [
        {key: _cell(value) for key, value in row.items() if value != "" or key not in _KEY}
        for row in rows
    ]
    by_name = {**_lines_by_name(file), name: new}
    FOLDER.mkdir(exist_ok=True)
    text = csv_text(line for lines in by_name.values() for line in lines)
    (FOLDER / f"{file}.csv").write_text(text, encoding="utf-8")
    _lines_by_name.cache_clear()
    load.cache_clear()
