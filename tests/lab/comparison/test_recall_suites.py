"""Suites of recall tasks: sizes, and the seeds that solved a task."""

from __future__ import annotations

from typing import Any

import pytest
from fake_comparison import comparison, table_of

from rifflemix.lab.comparison import get_suite
from rifflemix.lab.comparison.pages.table import table_cells, table_headers
from rifflemix.lab.comparison.suites.report import SuiteReport
from rifflemix.lab.tasks import load_task, task_card

SUITES = ("recall-small", "mad-small", "recall", "mad")
FEW = {"num_train": 4, "num_validation": 4, "num_test": 4}


@pytest.mark.parametrize("name", SUITES)
def test_every_task_can_be_drawn(name: str) -> None:
    for label, task in get_suite(name).tasks.items():
        lengths = {} if "test_lengths" not in task.options else {"test_lengths": []}
        loaded = load_task(task.task, **{**task.options, **FEW, **lengths})
        assert len(loaded.split("test")) == 4, label
        assert loaded.options["causal"]


def test_mad_has_its_baseline_settings() -> None:
    for name, epochs in (("mad-small", 20), ("mad", 200)):
        for label, task in get_suite(name).tasks.items():
            options = {**task_card(task.task).options, **task.options}
            assert task.settings["max_steps"] == epochs * options["num_train"] // 128
            assert options["num_train"] == (256 if label == "memorization" else 12_800)
            assert (task.settings["dim"], task.settings["num_heads"]) == (128, 16)


def test_the_small_suite_tests_at_eight_times_the_length() -> None:
    tasks = get_suite("recall-small").tasks
    for name in ("mqar", "copying", "induction", "needle", "state_tracking"):
        length = tasks[name].options["length"]
        assert tasks[name].options["test_lengths"] == [2 * length, 4 * length, 8 * length]
    assert {task.task for task in tasks.values()} == {
        "mqar", "in_context_recall", "noisy_recall", "fuzzy_recall", "selective_copying",
        "compression", "memorization", "copying", "induction", "needle", "state_tracking",
    }  # fmt: skip


def solved(*accuracies: float) -> dict[str, Any]:
    results = comparison(mixers=2, seeds=len(accuracies))
    results["task"]["solved_at"] = 0.95
    for run in results["runs"]:
        run["test"]["accuracy"] = accuracies[run["seed"]] if run["mixer"] == "csp" else 0.1
    return results


def test_tables_count_the_seeds_that_solved_the_task() -> None:
    table = table_of(solved(0.99, 0.95, 0.94))
    at = table_headers(table).index("Seeds that solved it")
    assert [row[at].text for row in table_cells(table)] == ["0 of 3", "2 of 3"]
    assert [row.solved for row in table.rows] == [0, 2]
    assert "Seeds that solved it" not in table_headers(table_of(comparison()))


def test_suites_show_a_table_of_tasks_and_mixers() -> None:
    tables = {"a": table_of(solved(0.99, 0.99)), "b": table_of(solved(0.5, 1.0))}
    (part,) = [p for p in SuiteReport(tables).parts if p.heading == "Seeds that solved the task"]
    assert list(part.headers) == ["Mixer", "a", "b"]
    assert [[cell.text for cell in row[1:]] for row in part.rows] == [
        ["0 of 2", "0 of 2"], ["2 of 2", "1 of 2"],
    ]  # fmt: skip
    plain = SuiteReport({"a": table_of(comparison())})
    assert all(p.heading != "Seeds that solved the task" for p in plain.parts)


def test_a_reference_of_one_task_is_not_a_mixer_of_the_suite() -> None:
    results = solved(0.99)
    scores = {"accuracy": 0.1}
    results["task"] |= {
        "reference": {"validation": scores, "test": scores},
        "reference_answer": "the most frequent class",
    }
    tables = {"a": table_of(results), "b": table_of(solved(0.99))}
    for part in SuiteReport(tables).parts:
        if part.headers[0] == "Mixer":
            assert len(part.rows) == 2, part.heading
