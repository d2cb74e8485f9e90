"""Tests of suites: comparisons of the same mixers on several tasks, with cautious ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import comparison, summary, table_of, unfinished

from document_scripts import load_script
from rifflemix.lab.comparison import (
    SUITES,
    get_suite,
)
from rifflemix.lab.comparison.choices import resolve
from rifflemix.lab.comparison.rows import Ranking, Row, mean_ratio, mean_standing, ranking, unbeaten
from rifflemix.lab.comparison.suites.report import SuiteReport
from rifflemix.lab.tasks import task_card
from rifflemix.mixers import HEADLINE

REPOSITORY = Path(__file__).resolve().parents[3]
BASELINES_CHOSEN_BY = "compare-digits-all-2026-11-20"


def with_accuracies(scores: dict[str, list[float] | None]) -> dict[str, Any]:
    """Build a finished comparison from test accuracies by mixer and seed.

    None means that every run of the mixer failed.
    """
    seeds = max(len(values) for values in scores.values() if values)
    results = comparison(mixers=6, seeds=seeds)
    results["mixers"] = [m for m in results["mixers"] if m["name"] in scores]
    results["runs"] = [run for run in results["runs"] if scores.get(run["mixer"])]
    results["task"]["sizes"]["test"] = 10**9  # so that noise comes from seeds only
    for run in results["runs"]:
        values = scores[run["mixer"]]
        assert values is not None
        run["test"]["accuracy"] = values[run["seed"]]
    for mixer in results["mixers"]:
        own = [run["test"]["accuracy"] for run in results["runs"] if run["mixer"] == mixer["name"]]
        mixer["test"] = summary(own)
    return results


def report_of(tasks: dict[str, dict[str, Any]]) -> SuiteReport:
    return SuiteReport({name: table_of(results) for name, results in tasks.items()})


CLEAR_SCORES = {
    "softmax": [0.80, 0.81, 0.82],
    "csp": [0.90, 0.91, 0.92],
    "tssa": [0.80, 0.82, 0.81],
}


def test_significant_differences_rank_and_others_share_ranks() -> None:
    found = ranking(table_of(with_accuracies(CLEAR_SCORES)))
    assert found is not None
    assert found.ahead == {("csp", "softmax"), ("csp", "tssa")}
    bounds = {name: found.standing(name) for name in found.names}
    assert [(s.rank, s.low, s.high) for s in bounds.values()] == [
        (2.5, 2.0, 3.0),
        (1.0, 1.0, 1.0),
        (2.5, 2.0, 3.0),
    ]


def test_ranks_of_a_task_have_the_sum_of_ranks_without_ties() -> None:
    found = ranking(table_of(comparison(mixers=6, seeds=3)))
    assert found is not None
    assert sum(found.standing(name).rank for name in found.names) == 21.0


def test_correction_is_over_all_pairs() -> None:
    """A difference that is significant in one comparison is not significant among fifteen."""
    near = {"softmax": [0.80, 0.81, 0.82], "csp": [0.810, 0.822, 0.829]}
    alone = ranking(table_of(with_accuracies(near)))
    others = {"tssa": [0.7, 0.9, 0.8], "butterfly": [0.9, 0.7, 0.8], "sinkhorn": [0.8, 0.9, 0.7]}
    among = ranking(table_of(with_accuracies({**near, **others})))
    assert alone is not None
    assert among is not None
    assert ("csp", "softmax") in alone.ahead
    assert ("csp", "softmax") not in among.ahead


def test_one_seed_ranks_no_mixer() -> None:
    found = ranking(
        table_of(with_accuracies({name: values[:1] for name, values in CLEAR_SCORES.items()}))
    )
    assert found is not None
    assert not found.ahead
    assert {found.standing(name).rank for name in found.names} == {2.0}


def test_failed_mixer_has_the_last_rank() -> None:
    found = ranking(table_of(with_accuracies({**CLEAR_SCORES, "csp": None})))
    assert found is not None
    assert found.ahead == {("softmax", "csp"), ("tssa", "csp")}


def test_lower_score_ranks_first_if_lower_is_better() -> None:
    results = with_accuracies(CLEAR_SCORES)
    for run in results["runs"]:
        for at in (run["test"], run["validation"]):
            at["rmse"] = at["accuracy"]
    for mixer in results["mixers"]:
        summaries = {"validation": mixer["validation"], "test": mixer["test"]}
        mixer["metric"] = {"name": "rmse", "higher_is_better": False, **summaries}
    found = ranking(table_of(results))
    assert found is not None
    assert found.ahead == {("softmax", "csp"), ("tssa", "csp")}


def test_table_of_scores_names_its_metrics() -> None:
    errors = with_accuracies(CLEAR_SCORES)
    for run in errors["runs"]:
        for at in (run["test"], run["validation"]):
            at["rmse"] = at["accuracy"]
    for mixer in errors["mixers"]:
        summaries = {"validation": mixer["validation"], "test": mixer["test"]}
        mixer["metric"] = {"name": "rmse", "higher_is_better": False, **summaries}
    classes = with_accuracies(CLEAR_SCORES)
    for tasks, heading, columns in (
        ({"a": classes}, "Accuracy, %", ["a"]),
        ({"b": errors}, "Rmse", ["b"]),
        ({"a": classes, "b": errors}, "Test scores", ["a: accuracy, %", "b: rmse"]),
    ):
        part = report_of(tasks).parts[1]
        assert (part.heading, list(part.headers)) == (heading, ["Mixer", *columns])
        assert ("accuracy" in report_of(tasks).answers[0]) is ("b" not in tasks)


def test_unfinished_or_untrained_runs_rank_no_mixer() -> None:
    assert ranking(table_of(unfinished())) is None
    guessing = {name: [0.1, 0.1, 0.1] for name in CLEAR_SCORES}
    results = with_accuracies(guessing)
    assert ranking(table_of(results)) is None
    answers = report_of({"a": results}).answers
    assert any(re.search(r"learned a\b", sentence) for sentence in answers)


def test_means_over_tasks() -> None:
    names = ("a", "b", "c")
    one = Ranking(frozenset({("a", "b"), ("a", "c")}), names)
    other = Ranking(frozenset({("b", "a")}), names)
    standing = mean_standing([one, other], "a")
    assert standing is not None
    assert (standing.rank, standing.low, standing.high) == (1.75, 1.5, 2.0)
    assert mean_standing([], "a") is None
    assert unbeaten([one]) == ["a"]
    assert unbeaten([one, other]) == ["a", "b"]  # each beats the other once
    assert unbeaten([]) == []


def test_no_best_mixer_is_named_if_every_mixer_loses_somewhere() -> None:
    """Build a cycle in which each of three mixers loses to another on two of three tasks."""
    ring = [("softmax", "csp", "tssa"), ("csp", "tssa", "softmax"), ("tssa", "softmax", "csp")]
    steps = [[0.90, 0.91, 0.92], [0.80, 0.82, 0.81], [0.70, 0.71, 0.73]]
    tasks = {order[0]: with_accuracies(dict(zip(order, steps, strict=True))) for order in ring}
    assert "accuracy" in report_of(tasks).answers[0]
    assert not any(name in report_of(tasks).answers[0].lower() for name in CLEAR_SCORES)


def test_ratios_are_geometric_means_relative_to_softmax() -> None:
    tasks = [with_accuracies(CLEAR_SCORES) for _ in range(2)]
    for results, speed in zip(tasks, (2.0, 8.0), strict=True):
        for mixer in results["mixers"]:
            mixer["steps_per_second"] = speed if mixer["name"] == "csp" else 1.0

    def speed_of(row: Row) -> float | None:
        return row.steps_per_second

    tables = [table_of(results) for results in tasks]
    assert mean_ratio(tables, "csp", speed_of) == pytest.approx(4.0)
    assert mean_ratio(tables, "softmax", speed_of) == pytest.approx(1.0)
    without = [
        table_of(with_accuracies({"csp": CLEAR_SCORES["csp"], "tssa": CLEAR_SCORES["tssa"]}))
    ]
    assert mean_ratio(without, "csp", speed_of) is None


def test_page_names_winners_and_losses() -> None:
    worse = {**CLEAR_SCORES, "tssa": [0.70, 0.71, 0.72], "csp": CLEAR_SCORES["softmax"]}
    tasks = {"first": with_accuracies(CLEAR_SCORES), "second": with_accuracies(worse)}
    said = report_of(tasks).answers
    assert re.search(r"accuracy\b.*\bCsp\b", said[0])
    assert "Tssa" not in said[0]
    assert any(re.search(r"Tssa\b.*\bsoftmax\b.*\bsecond\b", sentence) for sentence in said)
    overview, scores, differences, *_ = report_of(tasks).parts
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in overview.rows}
    assert cells["Csp"][:3] == ["1.2 (1.0 to 1.5)", "first", "-"]
    assert cells["Tssa"][1:3] == ["-", "second"]
    assert [row[1].best for row in overview.rows] == [False, True, False]
    assert [row[1].best for row in scores.rows] == [False, True, False]
    assert differences.rows[1][1].text.startswith("+10.00 (")
    assert differences.rows[1][1].text.endswith(" *")
    assert differences.rows[1][2].text.startswith("+0.00")
    assert "| Csp | **1.2 (1.0 to 1.5)** | first |" in report_of(tasks).markdown("Title")
    page = report_of(tasks).html("<Title>", "command")
    assert "&lt;Title&gt;" in page
    assert 'href="second/report.html"' in page


def named(sentences: list[str]) -> list[tuple[str, list[str]]]:
    """Return the subject and the named mixers of each sentence."""
    return [
        (
            next((word for word in ("accuracy", "speed", "memory") if word in sentence), ""),
            re.findall("Butterfly|Csp|Sinkhorn|Tssa", sentence),
        )
        for sentence in sentences
    ]


def test_page_names_the_fastest_and_smallest_mixers() -> None:
    alike = dict.fromkeys(("butterfly", "sinkhorn"), CLEAR_SCORES["softmax"])
    results = with_accuracies({**CLEAR_SCORES, **alike})
    speeds = {"softmax": 10.0, "csp": 15.0, "tssa": 9.0, "butterfly": 40.0, "sinkhorn": 10.0}
    sizes = {"softmax": 100, "csp": 75, "tssa": 150, "butterfly": 100, "sinkhorn": 25}
    for mixer in results["mixers"]:
        mixer["steps_per_second"] = speeds[mixer["name"]]
        mixer["peak_memory_bytes"] = sizes[mixer["name"]]
    assert named(report_of({"one": results}).answers) == [
        ("accuracy", ["Csp"]),
        ("speed", ["Butterfly", "Csp"]),
        ("memory", ["Sinkhorn", "Csp"]),
        ("", ["Tssa"]),
    ]
    for mixer in results["mixers"]:
        mixer |= {"steps_per_second": 10.0, "peak_memory_bytes": 100}
    assert named(report_of({"one": results}).answers)[1:] == [("speed", [])]


def test_failed_mixer_is_not_named_for_memory() -> None:
    results = with_accuracies({**CLEAR_SCORES, "csp": None})
    for mixer in results["mixers"]:
        mixer["peak_memory_bytes"] = {"softmax": 100, "csp": 50, "tssa": 75}[mixer["name"]]
    assert ("memory", ["Tssa"]) in named(report_of({"one": results}).answers)


def test_without_softmax_there_are_no_relative_values() -> None:
    tasks = {"one": with_accuracies({"csp": CLEAR_SCORES["csp"], "tssa": CLEAR_SCORES["tssa"]})}
    overview = report_of(tasks).parts[0]
    assert [row[4].text for row in overview.rows] == ["-", "-"]
    assert named(report_of(tasks).answers)[0] == ("accuracy", ["Csp"])


# The suites.


def test_every_task_of_a_suite_resolves_with_the_same_rates_for_all_mixers() -> None:
    for suite in SUITES.values():
        for task in suite.tasks.values():
            mixers = dict(zip(suite.mixers, suite.mixers, strict=True))
            config = resolve(task_card(task.task), mixers, (0,), **suite.settings(task))
            rates = config.tuned.get("lr", (config.train.lr,))
            assert tuple(rates) == suite.lr
            assert set(task.options) <= set(task_card(task.task).options)


def test_the_small_suite_has_the_headline_and_the_best_baselines_by_validation() -> None:
    results = load_script("benchmarks/store.py").load(BASELINES_CHOSEN_BY).content
    runs = [run for run in results["runs"] if run["mixer"] not in HEADLINE]
    best = sorted(runs, key=lambda run: -run["validation"]["accuracy"])[:8]
    mixers = get_suite("lra-small").mixers
    assert mixers[: len(HEADLINE)] == HEADLINE
    assert {run["mixer"] for run in best} == set(mixers[len(HEADLINE) :])
    smoke = get_suite("lra-small-smoke")
    for name, task in get_suite("lra-small").tasks.items():
        half = {**task.settings, "max_steps": task.settings["max_steps"] // 2}
        assert smoke.tasks[name] == replace(task, settings=half)


def test_the_page_of_the_suites_has_their_sizes() -> None:
    page = (REPOSITORY / "docs/comparing.md").read_text(encoding="utf-8")
    for name, task in get_suite("lra-small").tasks.items():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert line.endswith("| {max_steps:,} steps of {batch_size} |".format(**task.settings))
        assert all(f"{value:,}" in line for value in task.options.values()), line
