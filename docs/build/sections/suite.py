"""The section on the small suite: accuracy, speed and memory of mixers on six tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paths import listed
from sections.common import Section, scores
from store import Result, load
from tables import table_of

from rifflemix.lab.comparison.suites.catalog import get_suite
from rifflemix.lab.comparison.suites.report import Overall, SuiteReport
from rifflemix.lab.report.units import format_duration
from rifflemix.text import bold, bullet_lines, table_lines

SUITE = "lra-small"
_SCORES = (
    "Bold: no other mixer is significantly better on the task, and another mixer is worse. "
    "Accuracies are means and standard deviations over seeds, with the settings that validation "
    "chose. Speed and memory are geometric means over tasks, relative to softmax attention."
)


def suite_tasks() -> dict[str, Result]:
    """Return the comparison of each task of the suite."""
    tasks = load(f"suites/{SUITE}").content["tasks"]
    return {name: load(f"suites/{SUITE}/{name}") for name in tasks}


def which_mixer() -> Section:
    """Rank the mixers over the tasks of the suite."""
    whole, tasks = load(f"suites/{SUITE}"), suite_tasks()
    comparisons = {name: result.content for name, result in tasks.items()}
    report = SuiteReport({name: table_of(result) for name, result in tasks.items()})
    table = [_line(mixer, tasks) for mixer in report.mixers]
    text = "\n".join([*bullet_lines(report.answers), "", _how(whole.content, comparisons)])
    return Section("Small suite", text, "suite",
                   "", table, [whole, *tasks.values()],
                   _commands(comparisons), below=_scores(report))  # fmt: skip


def _commands(comparisons: Mapping[str, Any]) -> list[str]:
    """Return the commands of all tasks that were run at once."""
    whole = [of["command"] for of in comparisons.values() if "merged" not in of]
    return list(dict.fromkeys(whole)) or [of["command"] for of in comparisons.values()]


def _scores(report: SuiteReport) -> str:
    """Write a table of accuracy, speed and memory, sorted by rank."""
    ranked = sorted(
        report.mixers, key=lambda mixer: mixer.standing.rank if mixer.standing else math.inf
    )
    accuracy = next(part for part in report.parts if part.heading == "Accuracy, %")
    by_title = {title.text: cells for title, *cells in accuracy.rows}
    headers = ["Mixer", *(f"{name}, %" for name in report.tables), "Speed", "Memory"]
    rows = [
        [
            mixer.title,
            *(bold(cell.text) if cell.best else cell.text for cell in by_title[mixer.title]),
            f"{mixer.speed:.2f}x",
            f"{mixer.memory:.2f}x",
        ]
        for mixer in ranked
    ]
    table = "\n".join(table_lines(headers, rows, range(1, len(headers))))
    return f"{table}\n\n{_SCORES}"


def _line(mixer: Overall, tasks: Mapping[str, Result]) -> dict[str, Any]:
    assert mixer.standing is not None
    line: dict[str, Any] = {
        "mixer": mixer.name,
        "title": mixer.title,
        "rank": mixer.standing.rank,
        "rank_low": mixer.standing.low,
        "rank_high": mixer.standing.high,
        "x_softmax_speed": mixer.speed,
        "x_softmax_memory": mixer.memory,
    }
    for name, result in tasks.items():
        rows = {row.name: row for row in table_of(result).rows}
        found = scores(name, rows[mixer.name])
        line |= {f"{name}_test": found["test"], f"{name}_std": found["test_std"]}
    return line


def _how(whole: Mapping[str, Any], tasks: Mapping[str, Any]) -> str:
    """Describe the runs, and name the tasks of the suite that were not run."""
    trainings = sum(len(content["tuning"]["trials"]) for content in tasks.values())
    spent = math.fsum(task["wall_seconds"] for task in whole["tasks"].values())
    left = [name for name in get_suite(SUITE).tasks if name not in tasks]
    rest = f" Not run yet: {listed(left)}." if left else ""
    apart = [name for name, content in tasks.items() if "merged" in content]
    if apart:
        rest += f" Run in parts and merged by `rifflemix merge`: {listed(apart)}."
    return (
        f"The table is sorted by mean rank; only significant differences count. {trainings} "
        f"trainings on one thread took {format_duration(spent)}. Speeds are approximate, since the "
        f"machine also did other work.{rest}"
    )
