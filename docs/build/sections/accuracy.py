"""The section on the accuracy of every mixer, next to a model without mixing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from charts import Mark, Row, dots
from sections.common import Section, scores, task_title
from sections.suite import suite_tasks
from store import FOLDER, load, names
from tables import results_of

from rifflemix.lab.comparison.decisions import Decisions
from rifflemix.lab.comparison.merging import merged_results
from rifflemix.lab.comparison.rows import Row as Compared
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.decode import encode

WITHOUT_MIXING = "identity"
EVERY_MIXER = "every-mixer"


def every_mixer() -> Section:
    """Compare every mixer with a model without mixing, on the images of the suite."""
    found = [suite_tasks()["image"], *map(load, sorted(names(f"{EVERY_MIXER}/*")))]
    merged = merged_results({Path(result.name): results_of(result) for result in found}, FOLDER)
    content = encode(merged)
    rows = sorted(
        (row for row in Table(merged).rows if row.test is not None),
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
        table.append(scores(EVERY_MIXER, row) | compared)
    table.append(scores(EVERY_MIXER, without))
    rates, seeds = len(content["tuning"]["grid"]["lr"]), len(content["seeds"])
    text = (
        f"Of {len(others)} mixers on {task_title(content)}, {counts['more']} are significantly "
        f"better than a model without mixing and {counts['less']} significantly worse. A model "
        f"without mixing reaches {without.test} %. The best mixers are {_ahead(rows)}. Each mixer "
        f"has the best of {rates} learning rates and {seeds} seeds."
    )
    title = "Test accuracy above a model without mixing, points"
    return Section("Every mixer on CIFAR-10", text, EVERY_MIXER,
                   dots(title, drawn, rule=0.0), table, found,
                   [part["command"] for part in content["merged"]])  # fmt: skip


def _ahead(rows: Sequence[Compared]) -> str:
    return ", ".join(f"{row.title} ({row.test} %)" for row in rows[:3])
