"""Blocks with the tables of `rifflemix compare` and `make demo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from paths import ASSETS, link
from store import Result, load, names, newest
from tables import table_of

from blocks.common import cite
from rifflemix.lab.bench import describe_hardware
from rifflemix.lab.comparison.pages.notes import comparison_notes
from rifflemix.lab.comparison.pages.plot import comparison_plot
from rifflemix.lab.comparison.pages.table import markdown_body
from rifflemix.lab.report.units import format_duration
from rifflemix.text import table_lines

_SAME = ("task", "model", "dim", "num_layers", "num_heads", "mixers", "seeds", "train")


def demo(page: Path, _: list[str]) -> str:
    """Write the newest demo."""
    result = newest("demo/*")
    table = table_of(result)
    return (
        f"What `make demo` printed, from {cite(page, result)}:\n\n"
        f"{markdown_body(table, comparison_notes(table))}\n"
        f"![{_finding(result)}]({link(page, ASSETS / 'demo.png')})\n\n"
        f"{_machines(page, result.content)}"
    )


def _finding(result: Result) -> str:
    """Return the text alternative of the plot of a comparison."""
    words = (
        f"{row.title} {100 * row.test.mean:.0f} % at {row.steps_per_second:.0f} steps per second"
        for row in table_of(result).rows
        if row.test is not None
    )
    return f"Accuracy against speed: {'; '.join(words)}."


def _machines(page: Path, shown: Mapping[str, Any]) -> str:
    """Write how long the demo takes on each machine."""
    rows = []
    for result in map(load, names("demo/*")):
        content = result.content
        if all(content["config"][key] == shown["config"][key] for key in _SAME):
            waits = [format_duration(seconds) for seconds in _waits(content["runs"])]
            rows.append([describe_hardware(content["environment"]), *waits, cite(page, result)])
    lines = ["| Machine | First row | Whole table | File |", "| --- | ---: | ---: | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _waits(runs: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the seconds from the start to the end of the first and of the last run."""
    ends = [datetime.fromisoformat(run["environment"]["time"]) for run in runs]
    first: float = runs[0]["wall_seconds"]
    return first, first + (ends[-1] - ends[0]).total_seconds()


def demo_plot() -> bytes:
    """Draw the newest demo."""
    return comparison_plot(table_of(newest("demo/*")))


def scores(page: Path, results: list[str]) -> str:
    """Write the test scores and the speed of several comparisons, one line per mixer: NAME, ..."""
    tables = {name: table_of(load(name)) for name in results}
    names = dict.fromkeys(row.name for table in tables.values() for row in table.rows)
    by_name = {
        name: {row.name: row for row in table.rows if row.test is not None}
        for name, table in tables.items()
    }
    headers = ["mixer"]
    for table in tables.values():
        metric = next(row.metric for row in table.rows)
        headers += [f"{table.results.task.title}, {metric}", "steps/s"]
    cells = []
    for name in names:
        line = [name]
        for rows in by_name.values():
            row = rows.get(name)
            line += ["", ""] if row is None else [str(row.test), f"{row.steps_per_second:.3g}"]
        cells.append(line)
    links = ", ".join(cite(page, load(name)) for name in results)
    note = f"Test scores, mean ± standard deviation over seeds. From {links}."
    return "\n".join([*table_lines(headers, cells, range(1, len(headers))), "", note])


WRITERS = {"demo": demo, "scores": scores}
