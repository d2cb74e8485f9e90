"""What docs/results.md says of the small suite: who stands where, and what its tasks take."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results_common import RESULTS, Answer, by_time, listed, read, scores
from results_pictures import Mark, Row, dots

from rifflemix.lab.comparison.suite_report import Overall, answers, overall, parts
from rifflemix.lab.comparison.suites import get_suite
from rifflemix.lab.comparison.table import comparison_rows
from rifflemix.lab.report.units import format_duration
from rifflemix.text import bold, bullet_lines, table_lines

SUITE = "lra-small"
FOLDER = RESULTS / "suites" / SUITE
_SCORES = (
    "Bold: no other mixer is significantly better on the task; nothing, if that holds for all. "
    "Means and standard deviations over seeds of what validation chose; speed and memory: "
    "geometric means over tasks, times softmax attention's."
)


def suite_tasks() -> dict[str, Path]:
    """The result file of each task of the suite."""
    tasks = read(FOLDER / "results.json")["tasks"]
    return {name: FOLDER / task["results"] for name, task in tasks.items()}


def which_mixer() -> Answer:
    """Ranks over the tasks of the suite, with what differences that are not decided leave open."""
    made, tasks = read(FOLDER / "results.json"), suite_tasks()
    comparisons = {name: read(path) for name, path in tasks.items()}
    table = [_line(mixer, tasks) for mixer in overall(comparisons)]
    drawn = [Row(line["title"], (Mark(line["rank"], "main", line["rank_low"], line["rank_high"]),),
                 f"{line['rank']:.1f}; {line['x_softmax_speed']:.2f} speed, "
                 f"{line['x_softmax_memory']:.2f} memory")
             for line in sorted(table, key=lambda line: float(line["rank"]))]  # fmt: skip
    says = "\n".join([*bullet_lines(answers(comparisons)), "",
                      _how(made, tasks)])  # fmt: skip
    return Answer("Which mixer for me?", says, "suite", dots("Mean rank over the tasks", drawn),
                  table, [FOLDER / "results.json", *tasks.values()],
                  _commands(comparisons), shown=_scores(comparisons))  # fmt: skip


def _commands(comparisons: Mapping[str, Any]) -> list[str]:
    """What makes all tasks; of those that were made in parts, results.json has the commands."""
    whole = [of["command"] for of in comparisons.values() if "merged" not in of]
    return list(dict.fromkeys(whole)) or [of["command"] for of in comparisons.values()]


def _scores(comparisons: Mapping[str, Any]) -> str:
    """Test accuracy on every task, with speed and memory, as a table; the best rank first."""
    ranked = sorted(
        overall(comparisons), key=lambda mixer: mixer.standing.rank if mixer.standing else math.inf
    )
    accuracy = next(part for part in parts(comparisons) if part.heading == "Accuracy, %")
    by_title = {title.text: cells for title, *cells in accuracy.rows}
    headers = ["Mixer", *(f"{name}, %" for name in comparisons), "Speed", "Memory"]
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


def _line(mixer: Overall, tasks: Mapping[str, Path]) -> dict[str, Any]:
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
    for name, path in tasks.items():
        rows = {row.name: row for row in comparison_rows(read(path))}
        found = scores(path, rows[mixer.name])
        line |= {f"{name}_test": found["test"], f"{name}_std": found["test_std"]}
    return line


def _how(made: Mapping[str, Any], tasks: Mapping[str, Path]) -> str:
    """What was run, and what of the suite was not."""
    trainings = sum(len(read(path)["tuning"]["trials"]) for path in tasks.values())
    spent = math.fsum(task["wall_seconds"] for task in made["tasks"].values())
    left = [name for name in get_suite(SUITE).tasks if name not in tasks]
    rest = f" Not run yet: {listed(left)}." if left else ""
    apart = [name for name, path in tasks.items() if "merged" in read(path)]
    if apart:
        rest += f" Run in parts and merged by `rifflemix merge`: {listed(apart)}."
    return (
        f"Disks are mean ranks over {listed(list(tasks))}; 1 is best. Bars show how far a rank "
        f"could move if every undecided difference fell to one side. {trainings} trainings on "
        f"one thread, {format_duration(spent)} in all, beside other work, so speeds are "
        f"rough.{rest}"
    )


def small_tasks() -> Answer:
    """What softmax attention reaches on the tasks of the suite, and how soon."""
    tasks = suite_tasks()
    drawn, table = [], []
    for name, path in tasks.items():
        results = read(path)
        row = next(row for row in comparison_rows(results) if row.name == "softmax")
        trials = [trial for trial in results["tuning"]["trials"] if trial["mixer"] == "softmax"]
        seconds = statistics.median(trial["wall_seconds"] for trial in trials)
        assert row.test is not None
        assert row.chance is not None
        marks = (Mark(100 * row.test.mean, "main"), Mark(100 * row.chance, "other"))
        words = f"{row.test} in {format_duration(seconds)}"
        drawn.append(Row(f"{name}, N = {results['task']['max_length']}", marks, words))
        line = {"task": name, **scores(path, row), "chance": row.chance, "seconds": seconds}
        table.append(line | {"threads": results["config"]["threads"]})
    smoke = by_time(f"suite-{SUITE}-smoke-*.json")[-1]
    quick = read(smoke)
    spent = math.fsum(task["wall_seconds"] for task in quick["tasks"].values())
    said = [f"{row.name.partition(',')[0]} {row.words}" for row in drawn]
    says = (
        f"Test accuracy in percent: {'; '.join(said)}. That is softmax attention at the sizes of "
        "[the suite](suites.md) and the rate that validation chose; a training on one thread, "
        "while other work shared the two cores. Rings are the accuracy of always giving the "
        "commonest answer. The suite's smoke "
        f"test of {listed([mixer['name'] for mixer in quick['mixers']])}, half the steps of "
        f"{listed(list(quick['tasks']))}, took {format_duration(spent)} in all, beside other work."
    )
    return Answer("Does softmax attention learn the small tasks in minutes?", says, "small-tasks",
                  dots("Test accuracy, %", drawn), table, [*tasks.values(), smoke],
                  [*_commands({name: read(path) for name, path in tasks.items()}),
                   quick["command"]])  # fmt: skip
