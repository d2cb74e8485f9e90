from __future__ import annotations

from typing import Any

import pytest
from fake_comparison import comparison, mixer, run, unfinished, with_perplexity

from rifflemix.bench.compare.results import summarise
from rifflemix.report.notes import comparison_notes, softmax_note
from rifflemix.report.table import (
    comparison_rows,
    markdown_table,
    table_cells,
    table_headers,
    terminal_table,
)


def results_of(**runs: list[tuple[float, float]]) -> dict[str, Any]:
    """Results with given (validation accuracy, speed) for each seed of each mixer."""
    results = comparison(mixers=1, seeds=max(len(values) for values in runs.values()))
    results["runs"] = [
        run(name, seed, accuracy=accuracy, speed=speed)
        for name, values in runs.items()
        for seed, (accuracy, speed) in enumerate(values)
    ]
    results["mixers"] = [mixer(name, results["runs"], 2**20) for name in runs]
    return results


def test_rows_keep_the_order_of_the_registry() -> None:
    names = [row.name for row in comparison_rows(comparison())]
    assert names == ["softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn"]


def test_markdown_is_one_well_formed_table() -> None:
    rows = comparison_rows(comparison())
    lines = markdown_table(comparison(), ["a note"]).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 6
    assert {line.count("|") for line in table} == {len(table_headers(rows)) + 1}
    assert lines[-1] == "- a note"


def test_a_title_with_a_bar_does_not_break_the_table() -> None:
    results = comparison(mixers=1)
    results["mixers"][0]["title"] = "a|b"
    assert "| a\\|b |" in markdown_table(results, [])


def test_cells_show_mean_spread_and_ratio() -> None:
    results = results_of(softmax=[(0.91, 10.0), (0.93, 10.0)], csp=[(0.96, 25.0), (0.96, 25.0)])
    softmax, csp = table_cells(comparison_rows(results))
    assert [cell.text for cell in softmax[1:5]] == [
        "2", "91.00 ± 1.41", "92.00 ± 1.41", "10.0 (1.00x)",
    ]  # fmt: skip
    assert csp[4].text == "25.0 (2.50x)"
    assert csp[5].text == "1.00 MiB (1.00x)"
    assert [cell.best for cell in csp] == [False, False, True, True, True, True, True, False]
    assert softmax[5].best  # equal memory: both are best


def test_one_seed_has_no_spread() -> None:
    cells = table_cells(comparison_rows(results_of(softmax=[(0.91, 10.0)])))
    assert cells[0][2].text == "90.00"
    assert not any(cell.best for cell in cells[0])


def test_accuracies_that_print_alike_are_both_best() -> None:
    results = results_of(softmax=[(0.910001, 10.0)], csp=[(0.910002, 9.0)])
    cells = table_cells(comparison_rows(results))
    assert [row[2].best for row in cells] == [True, True]
    assert [row[4].best for row in cells] == [True, False]


def test_without_softmax_nothing_is_relative() -> None:
    cells = table_cells(comparison_rows(results_of(csp=[(0.9, 10.0)])))
    assert cells[0][4].text == "10.0"
    assert "softmax has no finished run" in softmax_note(results_of(csp=[(0.9, 10.0)]))


def test_mixers_without_a_run_are_shown_as_missing() -> None:
    cells = table_cells(comparison_rows(unfinished()))
    assert [cell.text for cell in cells[0][1:6]] == ["0", "-", "-", "-", "-"]
    assert terminal_table(unfinished()).row_count == 2


def test_unmeasured_speed_is_missing() -> None:
    results = comparison(mixers=1, seeds=1)
    results["mixers"][0]["steps_per_second"] = None
    assert table_cells(comparison_rows(results))[0][4].text == "-"


def test_softmax_note_names_whom_it_beats_and_in_what() -> None:
    results = results_of(
        softmax=[(0.95, 10.0), (0.95, 10.0)],
        csp=[(0.90, 20.0), (0.90, 20.0)],
        tssa=[(0.99, 5.0), (0.99, 5.0)],
    )
    note = softmax_note(results)
    assert "better mean test accuracy than Csp;" in note
    assert "faster training than Tssa" in note


def test_softmax_note_says_so_where_it_wins_nothing() -> None:
    results = results_of(softmax=[(0.90, 10.0)], csp=[(0.95, 20.0)])
    results["mixers"][0]["parameters"] = results["mixers"][1]["parameters"] + 1
    results["mixers"][0]["peak_memory_bytes"] = 2**21
    assert "wins against no mixer" in softmax_note(results)


def test_softmax_note_warns_of_differences_within_the_spread() -> None:
    results = results_of(softmax=[(0.90, 1.0), (0.96, 1.0)], csp=[(0.92, 1.0), (0.93, 1.0)])
    assert "within one standard deviation of that of Csp" in softmax_note(results)


@pytest.mark.parametrize(
    "words",
    [
        "Task digits (patch_size=1)",
        "1,000 train, 300 validation, 300 test",
        "100 steps of 8 sequences",
        "sample standard deviation over 3 seeds",
        "validation split chose the weights",
        "a fixed fifth",
        "a processor, 2 cores, 1 threads",
        "Peak memory",
        "softmax attention wins",
    ],
)
def test_notes_say_what_a_reader_must_know(words: str) -> None:
    assert any(words in note for note in comparison_notes(comparison()))


def test_notes_own_up() -> None:
    results = comparison(seeds=1)
    results |= {"status": "partial", "runs_planned": 12}
    results["failed_runs"] = [{"mixer": "csp", "seed": 1, "error": "training diverged"}]
    results["runs"][1] = results["runs"][1] | {
        "environment": results["environment"] | {"git_commit": "1" * 40}
    }
    notes = comparison_notes(results)
    assert notes[0] == "Partial results: 6 of 12 runs are done; the same command goes on."
    assert any("One seed" in note for note in notes)
    assert any("csp, seed 1: training diverged" in note for note in notes)
    assert any("speeds do not compare" in note for note in notes)


def test_no_warning_for_one_machine() -> None:
    assert not any("do not compare" in note for note in comparison_notes(comparison()))


def test_the_metric_that_chose_the_weights_stands_in_front() -> None:
    results = comparison(mixers=2, seeds=2)
    for entry, values in zip(results["mixers"], ((41.5, 42.5), (39.0, 39.5)), strict=True):
        scores = summarise(list(values))
        entry["metric"] = {
            "name": "perplexity",
            "higher_is_better": False,
            "test": scores,
            "validation": scores,
        }
    rows = comparison_rows(results)
    assert table_headers(rows)[2:5] == [
        "Test perplexity",
        "Validation perplexity",
        "Test accuracy, %",
    ]
    first, second = table_cells(rows)
    assert (first[2].text, first[2].best) == ("42 ± 0.7071", False)
    assert (second[2].text, second[2].best) == ("39.25 ± 0.3536", True)


def test_without_accuracy_there_is_no_column_of_it() -> None:
    headers = table_headers(comparison_rows(with_perplexity(comparison(), accuracy=False)))
    assert headers[2:4] == ["Test perplexity", "Validation perplexity"]
    assert not any("accuracy" in header for header in headers)


def test_softmax_note_knows_which_way_is_better() -> None:
    results = results_of(softmax=[(0.95, 10.0)], csp=[(0.90, 20.0)], tssa=[(0.99, 5.0)])
    note = softmax_note(with_perplexity(results))
    assert "better mean test perplexity than Csp;" in note
