"""How far every mixer is from softmax attention, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rifflemix.lab.comparison.decisions import Decision, Decisions
from rifflemix.lab.comparison.paired import LEVEL
from rifflemix.lab.comparison.table import Row, baseline_row, counts_samples
from rifflemix.lab.report.units import SHARES, metric_title, metric_value
from rifflemix.text import table_lines

_HOW_TO_READ = (
    "Paired over seeds, with a variance estimated from all rows. The interval is not corrected for "
    "the number of rows, p is (Holm). "
)
_SAMPLES = {
    True: "Both count the finite test set, as if each mixer had one of its own.",
    False: "Neither counts the finite test set, whose error was not measured.",
}


@dataclass(frozen=True)
class RowDifference:
    """One mixer's test score minus that of softmax attention, and the decision about it."""

    row: Row
    decision: Decision


def decisions(rows: Sequence[Row]) -> Decisions:
    """Decide all pairs of rows by their test scores."""
    return Decisions({row.name: row.test for row in rows}, rows[0].higher_is_better)


def differences_from_softmax(rows: Sequence[Row]) -> list[RowDifference]:
    """Return those of every mixer that shares two seeds with softmax attention."""
    if baseline_row(rows) is None:
        return []
    decided = decisions(rows)
    found = [(row, decided.from_baseline(row.name)) for row in rows]
    return [RowDifference(row, decision) for row, decision in found if decision is not None]


def how_to_read(rows: Sequence[Row]) -> str:
    """What the table of differences counts as noise."""
    return _HOW_TO_READ + _SAMPLES[counts_samples(rows)]


def difference_headers(rows: Sequence[Row]) -> list[str]:
    """Column titles of the table of differences."""
    title = metric_title(rows[0].metric).replace(", %", ", points")
    return ["Mixer", f"Difference in test {title}", "95 % interval", "p", "Seeds"]


def difference_cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table's rows, as text."""
    return [_cells(difference) for difference in differences_from_softmax(rows)]


def markdown_differences(rows: Sequence[Row]) -> str:
    """The second part of table.md; empty where there is nothing to compare with."""
    cells = difference_cells(rows)
    if not cells:
        return ""
    headers = difference_headers(rows)
    table = table_lines(headers, cells, range(1, len(headers)))
    lines = ["", "## Differences from softmax attention", "", *table, "", how_to_read(rows), ""]
    return "\n".join(lines)


def _cells(of: RowDifference) -> list[str]:
    metric, difference = of.row.metric, of.decision.difference
    return [
        of.row.title,
        _signed(metric, difference.mean),
        f"{_signed(metric, difference.low)} to {_signed(metric, difference.high)}",
        _probability(of.decision.probability),
        str(difference.seeds),
    ]


def _probability(value: float) -> str:
    """Three digits, which do not round across the level."""
    if value < 0.001:
        return "< 0.001"
    text = f"{value:.3f}"
    return f"< {LEVEL:.3f}" if value < LEVEL <= float(text) else text


def _signed(metric: str, value: float) -> str:
    return f"{metric_value(metric, value):+z{'.2f' if metric in SHARES else '.4g'}}"
