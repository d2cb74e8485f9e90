"""docs/results.md's section on every mixer on one task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from results_common import RESULTS, Answer, listed, scores, task_title
from results_pictures import Mark, Row, dots
from results_suite import suite_tasks

from rifflemix.lab.comparison import Comparison
from rifflemix.lab.comparison.decisions import Decisions
from rifflemix.lab.comparison.merging import merged_results
from rifflemix.lab.comparison.table import Row as Compared
from rifflemix.lab.comparison.table import comparison_rows
from rifflemix.mixers import list_mixers

NAME = Path("every-mixer")
WITHOUT_MIXING = "identity"


def every_mixer() -> Answer:
    """Every mixer against a model without mixing: the suite's images, and the same of others."""
    paths = [suite_tasks()["image"], *sorted(RESULTS.glob("every-mixer/*/results.json"))]
    parts = {path.parent: Comparison.load(path.parent).results for path in paths}
    results = merged_results(parts, RESULTS)
    rows = sorted(
        (row for row in comparison_rows(results) if row.test is not None),
        key=lambda row: -row.test.mean if row.test else 0.0,
    )
    without = next(row for row in rows if row.name == WITHOUT_MIXING)
    scores_of = {row.name: row.test for row in rows}
    decided = Decisions(scores_of, higher_is_better=True, baseline=WITHOUT_MIXING)
    others = [row for row in rows if row is not without]
    drawn, table, counts = [], [], {"more": 0, "less": 0}
    for row in others:
        of = decided.from_baseline(row.name, WITHOUT_MIXING)
        assert of is not None, f"{row.name} shares no two seeds with {without.name}"
        difference, p = of.difference, of.probability
        mean, low, high = (100 * v for v in (difference.mean, difference.low, difference.high))
        if of.is_shown:
            counts["less" if of.is_loss else "more"] += 1
        mark = Mark(mean, "main" if of.is_shown else "other", low, high)
        drawn.append(Row(row.title, (mark,), f"{row.test} %"))
        compared = {"above": mean, "above_low": low, "above_high": high, "above_p": p}
        table.append(scores(NAME, row) | compared)
    table.append(scores(NAME, without))
    rates, seeds = len(results["tuning"]["grid"]["lr"]), len(results["seeds"])
    said = (
        f"On {task_title(results)}, a model without mixing reaches {without.test} %. Of the other "
        f"{len(others)} mixers {counts['more']} do better than it and {counts['less']} worse by "
        f"more than chance explains; ahead are {_ahead(rows)}. Each has the learning rate that "
        f"validation chose out of {rates}; means of {seeds} seeds. Circles "
        "are points of test accuracy above the model without mixing, with 95 % intervals paired "
        "over seeds; filled circles differ from it after Holm's correction. Only accuracy is told: "
        f"the parts of this comparison ran on different machines.{_left_out(rows)}"
    )
    title = "Test accuracy minus that of a model without mixing, points"
    return Answer("What does every mixer reach on one task?", said, "every-mixer",
                  dots(title, drawn, rule=0.0), table, paths,
                  [part["command"] for part in results["merged"]])  # fmt: skip


def _left_out(rows: Sequence[Compared]) -> str:
    """A sentence on the mixers that are not there."""
    absent = [name for name in list_mixers() if name not in {row.name for row in rows}]
    return f" Left out: {listed(absent)}." if absent else ""


def _ahead(rows: Sequence[Compared]) -> str:
    """The first three, in words."""
    return ", ".join(f"{row.title} ({row.test} %)" for row in rows[:3])
