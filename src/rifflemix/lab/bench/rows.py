"""Shapes, rows and JSON files of all benchmarks, and the cells of their tables.

benchmarks/README.md documents the format.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.errors import bad_argument
from rifflemix.files import write_json
from rifflemix.lab.bench.gate import Check
from rifflemix.lab.report.units import MISSING, format_count, format_rate
from rifflemix.lab.runs.environment import describe_hardware, environment

FORMAT = "rifflemix.bench/2"
MEASURED, FAILED, LEFT_OUT, STOPPED = "measured", "failed", "left out", "stopped"
FORWARD, FORWARD_BACKWARD, TRAINING_STEP = "forward", "forward_backward", "training_step"
STEP, ALONE = "step", "alone"

OPERATOR, LAYER, PEER, MODEL = "operator", "layer", "peer", "model"

Key = tuple[str, str]
"""Kind and name of a row. The kind is needed because a mixer and a package may share a name."""


@dataclass(frozen=True)
class Shape:
    """Batch size, tokens, channels and heads of one measurement."""

    batch: int
    tokens: int
    channels: int
    heads: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise bad_argument(f"shape: {name}", "at least 1", value)
            if value >= 2**63:
                raise bad_argument(f"shape: {name}", "a size that a tensor can have", value)
        if self.channels % self.heads:
            raise bad_argument(
                "shape: heads", f"a divisor of channels = {self.channels}", self.heads
            )

    def __str__(self) -> str:
        return f"({self.batch}, {self.tokens}, {self.channels})"


@dataclass(frozen=True)
class Timing:
    """Timings of one pass of one row.

    Attributes:
        seconds: duration of each timed call, in the order of the calls.
        p20, p50, p80: quantiles of `seconds`.
        peak_memory_bytes: peak memory minus the memory in use before the call.
        ratios: reference name -> p50 divided by the p50 of that reference at the same shape.
    """

    seconds: list[float]
    p20: float
    p50: float
    p80: float
    peak_memory_bytes: int
    ratios: dict[str, float] = field(default_factory=dict)


@dataclass
class Row:
    """Measurement of one operator, layer or model at one shape.

    Attributes:
        kind: operator, layer, peer or model.
        name: name of the operator, mixer, package or model.
        backend: backend of an operator; None if there is no choice.
        shape: shape of the measurement.
        status: measured, failed (a correctness check), left out or stopped.
        note: reason if the row was not measured, or an empty string.
        gate: correctness checks that ran before the first timing.
        passes: pass name -> timing.
        extra: other numbers. The keys depend on the benchmark.
    """

    kind: str
    name: str
    backend: str | None
    shape: Shape
    status: str = MEASURED
    note: str = ""
    gate: list[Check] = field(default_factory=list)
    passes: dict[str, Timing] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Kind and name of the row, equal for all its backends."""
        return self.kind, self.name


def timing(seconds: Sequence[float], peak_memory_bytes: int) -> Timing:
    """Build a `Timing` with linearly interpolated quantiles."""
    p20, p50, p80 = (float(value) for value in np.quantile(seconds, (0.2, 0.5, 0.8)))
    return Timing(list(seconds), p20, p50, p80, peak_memory_bytes)


def add_ratios(rows: Sequence[Row], references: Sequence[Key]) -> None:
    """Set the ratios of all timings to references and the eager backend."""
    for row in rows:
        others = {other.name: other for other in rows if other.key in references}
        for other in rows:
            if row.backend not in (None, "eager") and _is_eager_form(other, row.key):
                others["eager"] = other
        for name, timed in row.passes.items():
            for peer, other in others.items():
                if name in other.passes:
                    timed.ratios[peer] = timed.p50 / other.passes[name].p50


def _is_eager_form(row: Row, key: Key) -> bool:
    return row.key == key and row.backend == "eager"


def assemble(
    benchmark: str,
    settings: Mapping[str, Any],
    rows: Sequence[Row],
    *,
    complete: bool,
    wall_seconds: float,
) -> dict[str, Any]:
    """Assemble a JSON-serializable result.

    Args:
        benchmark: name of the benchmark on the command line.
        settings: all settings of the run.
        rows: rows in the order of the tables.
        complete: False if the benchmark was stopped early.
        wall_seconds: duration of the benchmark so far.
    """
    made_in = environment()
    return {
        "format": FORMAT,
        "benchmark": benchmark,
        "status": "complete" if complete else "partial",
        "command": made_in["command"],
        "settings": dict(settings),
        "environment": made_in,
        "wall_seconds": wall_seconds,
        "rows": [asdict(row) for row in rows],
    }


def result_name(result: Mapping[str, Any]) -> str:
    """Return a file name stem from benchmark, date and hardware.

    Example: ops-20250102-131415-amd-epyc-2-cores-1-threads.
    """
    made_in = result["environment"]
    digits = re.sub(r"\D", "", made_in["time"])[:14]
    hardware = made_in["hardware"]
    if result["settings"]["device"] == "cpu":
        machine = f"{hardware['cpu']} {hardware['cores']} cores {hardware['threads']} threads"
    else:
        machine = describe_hardware(made_in)
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    return f"{result['benchmark']}-{digits[:8]}-{digits[8:]}-{slug}"


def new_file(folder: Path, name: str) -> Path:
    """Return an unused path in `folder`: NAME.json, NAME-2.json, ..."""
    path, number = folder / f"{name}.json", 2
    while path.exists():
        path, number = folder / f"{name}-{number}.json", number + 1
    return path


def write_dated(folder: Path, kind: str, result: Mapping[str, Any]) -> Path:
    """Write a result to `folder`/KIND-DATE-TIME.json and return the path."""
    path = new_file(folder, time.strftime(f"{kind}-%Y%m%d-%H%M%S", time.gmtime()))
    write_json(path, result)
    return path


AXES = {"tokens": "N", "channels": "C"}

StoredRow = Mapping[str, Any]
Show = Callable[[Any], str]


@dataclass(frozen=True)
class BenchTable:
    """A table of texts."""

    title: str
    headers: list[str]
    rows: list[list[str]]


def shown_name(entry: Mapping[str, Any]) -> str:
    """Return the name, with a mark for packages.

    Some packages have the same name as a mixer.
    """
    return f"{entry['name']} (package)" if entry["kind"] == PEER else str(entry["name"])


def by_axis(title: str, cell: Show, rows: Sequence[StoredRow], axis: str) -> BenchTable:
    cells = {(shown_name(row), row["shape"][axis]): cell(row) for row in rows}
    return pivot(title, cells, axis)


def pivot(title: str, cells: Mapping[tuple[str, int], str], axis: str) -> BenchTable:
    """Show cells by name (rows) and N or C (columns)."""
    points = sorted({point for _, point in cells})
    lines = [
        [name, *(cells.get((name, point), MISSING) for point in points)]
        for name in dict.fromkeys(name for name, _ in cells)
    ]
    return BenchTable(title, ["Name", *(f"{AXES[axis]}={format_count(n)}" for n in points)], lines)


def table_of(
    title: str, columns: Sequence[tuple[str, Show]], rows: Sequence[StoredRow]
) -> BenchTable:
    cells = [[show(row) for _, show in columns] for row in rows]
    return BenchTable(title, [header for header, _ in columns], cells)


def timed(name: str, show: Show, otherwise: Show = lambda row: MISSING) -> Show:
    """Show a pass of a row, or `otherwise` if not timed."""
    return lambda row: show(row["passes"][name]) if name in row["passes"] else otherwise(row)


def spread(timing: Mapping[str, Any]) -> str:
    return f"{milliseconds(timing['p20'])} to {milliseconds(timing['p80'])}"


def ratio_to(peer: str) -> Show:
    return lambda t: format_rate(t["ratios"][peer]) if peer in t["ratios"] else MISSING


def time_and_ratio(peer: str) -> Show:
    def show(timing: Mapping[str, Any]) -> str:
        text = milliseconds(timing["p50"])
        return f"{text} ({ratio_to(peer)(timing)})" if peer in timing["ratios"] else text

    return show


def status(row: StoredRow) -> str:
    return str(row["status"])


def extra(key: str, show: Show) -> Show:
    return lambda row: show(row["extra"][key]) if key in row["extra"] else MISSING


def milliseconds(seconds: float) -> str:
    return format_rate(1e3 * seconds)


def pass_names(rows: Iterable[StoredRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["passes"]))


def label(row: StoredRow) -> str:
    name = shown_name(row)
    return f"{name} ({row['backend']})" if row["backend"] else name


def shape_text(row: StoredRow) -> str:
    shape = row["shape"]
    return f"({shape['batch']}, {shape['tokens']}, {shape['channels']}), {shape['heads']} heads"
