"""Tests of the notes of a comparison, and of the metrics in its table."""

from __future__ import annotations

import re

import pytest
from fake_comparison import comparison, summary, table_of, with_perplexity
from test_table import results_of

from rifflemix.lab.comparison.pages.notes import comparison_notes, softmax_note
from rifflemix.lab.comparison.pages.table import (
    table_cells,
    table_headers,
)


def test_softmax_note_names_mixers_and_metrics() -> None:
    results = results_of(
        softmax=[(0.95, 10.0), (0.95, 10.0)],
        csp=[(0.90, 20.0), (0.90, 20.0)],
        tssa=[(0.99, 5.0), (0.99, 5.0)],
    )
    better, faster, *_ = softmax_note(table_of(results)).split(";")
    assert re.search(r"accuracy.*Csp", better)
    assert "Tssa" not in better
    assert "Tssa" in faster
    assert "Csp" not in faster


@pytest.mark.parametrize(
    ("softmax", "csp", "is_said"),
    [(100, 101, True), (100, 100, False), (100, None, False), (None, 100, False)],
)
def test_softmax_note_compares_only_measured_memory(
    softmax: int | None, csp: int | None, is_said: bool
) -> None:
    results = results_of(softmax=[(0.90, 10.0)], csp=[(0.95, 20.0)])
    for entry in results["mixers"]:
        entry["peak_memory_bytes"] = None
    unmeasured = softmax_note(table_of(results)).count("Csp")
    for entry, memory in zip(results["mixers"], (softmax, csp), strict=True):
        entry["peak_memory_bytes"] = memory
    assert softmax_note(table_of(results)).count("Csp") == unmeasured + is_said


def test_softmax_note_says_that_softmax_wins_nothing() -> None:
    results = results_of(softmax=[(0.90, 10.0)], csp=[(0.95, 20.0)])
    results["mixers"][0]["parameters"] = results["mixers"][1]["parameters"] + 1
    results["mixers"][0]["peak_memory_bytes"] = 2**21
    assert "Csp" not in softmax_note(table_of(results))


def test_softmax_note_warns_of_differences_within_noise() -> None:
    near, far = [(0.92, 1.0), (0.93, 1.0)], [(0.30, 1.0), (0.36, 1.0)]
    softmax = [(0.90, 1.0), (0.96, 1.0)]
    note = softmax_note(table_of(results_of(softmax=softmax, csp=near, tssa=far)))
    assert re.search(r"accuracy.*Tssa.*accuracy.*Csp", note)
    alone = softmax_note(table_of(results_of(softmax=softmax, csp=near)))
    assert alone.count("accuracy") == 1
    assert "Csp" not in alone


@pytest.mark.parametrize(
    "words",
    [
        r"digits \(patch_size=1\)",
        "1,000 train, 300 validation, 300 test",
        r"\b100\b.*\b8\b",
        r"\b3 seeds",
        "a fixed fifth",
        "a processor, 2 cores, 1 thread,",
        re.escape(softmax_note(table_of(comparison()))),
    ],
)
def test_notes_name_task_sizes_budget_seeds_and_machine(words: str) -> None:
    assert any(re.search(words, note) for note in comparison_notes(table_of(comparison())))


def test_notes_report_failures_and_missing_runs() -> None:
    results = comparison(seeds=1)
    results |= {"status": "partial", "runs_planned": 12}
    results["failed_runs"] = [
        {"mixer": "csp", "seed": 1, "folder": "a", "error": "training diverged"}
    ]
    results["runs"][1] = results["runs"][1] | {
        "environment": results["environment"] | {"git_commit": "1" * 40}
    }
    notes = comparison_notes(table_of(results))
    assert re.search(r"\b6 of 12\b", notes[0])
    assert any(re.search("csp.*1.*training diverged", note) for note in notes)
    complete = comparison_notes(table_of(comparison(seeds=1)))
    assert len(notes) == len(complete) + 3  # partial, the failed run, two commits


def test_further_tests_are_reported() -> None:
    results = comparison(mixers=2, seeds=2)
    results["protocol"]["metric"] = "accuracy"
    results["task"]["sizes"]["photographs"] = 50
    for made in results["runs"]:
        better = 0.1 * made["seed"] * (made["mixer"] == "csp")
        made["test"]["photographs_accuracy"] = 0.5 + better
    (told,) = (note for note in comparison_notes(table_of(results)) if "softmax 50" in note)
    assert re.search(r"photographs.*softmax 50 ± 0, csp 55 ± 7\.1", told)
    results["runs"] = []
    assert not any("softmax 50" in note for note in comparison_notes(table_of(results)))


def test_selection_metric_is_the_first_column() -> None:
    results = comparison(mixers=2, seeds=2)
    for entry, values in zip(results["mixers"], ((41.5, 42.5), (39.0, 39.9)), strict=True):
        scores = summary(list(values))
        for own in (of for of in results["runs"] if of["mixer"] == entry["name"]):
            for split in ("test", "validation"):
                own[split]["perplexity"] = values[own["seed"]]
        entry["metric"] = {
            "name": "perplexity",
            "higher_is_better": False,
            "test": scores,
            "validation": scores,
        }
    table = table_of(results)
    assert table_headers(table)[2:5] == [
        "Test perplexity",
        "Validation perplexity",
        "Test accuracy, %",
    ]
    first, second = table_cells(table)
    assert (first[2].text, first[2].best) == ("42 ± 0.7071", False)
    assert (second[2].text, second[2].best) == ("39.45 ± 0.6364", True)
    assert [row.chance for row in table.rows] == [None, None]


def test_no_accuracy_column_without_accuracy() -> None:
    headers = table_headers(table_of(with_perplexity(comparison(), accuracy=False)))
    assert headers[2:4] == ["Test perplexity", "Validation perplexity"]
    assert not any("accuracy" in header for header in headers)


def test_softmax_note_uses_the_direction_of_the_metric() -> None:
    results = results_of(
        softmax=[(0.95, 10.0), (0.95, 10.0)],
        csp=[(0.90, 20.0), (0.90, 20.0)],
        tssa=[(0.99, 5.0), (0.99, 5.0)],
    )
    note = softmax_note(table_of(with_perplexity(results)))
    assert re.search("perplexity[^;]*Csp;", note)
