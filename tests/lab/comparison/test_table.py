from __future__ import annotations

import re
from typing import Any

import pytest
from fake_comparison import comparison, mixer, run, summary, table_of, unfinished, with_perplexity

from rifflemix.cli.compare import terminal_table
from rifflemix.lab.comparison.decisions import Decision
from rifflemix.lab.comparison.pages.notes import bold_note, comparison_notes, softmax_note
from rifflemix.lab.comparison.pages.table import (
    difference_cells,
    markdown_differences,
    markdown_table,
    table_cells,
    table_headers,
)
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.comparison.statistics import pooled_spread


def results_of(**runs: list[tuple[float, float]]) -> dict[str, Any]:
    """Build results from (validation accuracy, speed) for each seed of each mixer.

    The test accuracy is 0.01 lower than the validation accuracy. Both splits have 300 samples.
    """
    results = comparison(mixers=1, seeds=max(len(values) for values in runs.values()))
    results["runs"] = [
        run(name, seed, accuracy=accuracy, speed=speed)
        for name, values in runs.items()
        for seed, (accuracy, speed) in enumerate(values)
    ]
    results["mixers"] = [mixer(name, results["runs"], 2**20) for name in runs]
    return results


def test_rows_keep_the_order_of_the_registry() -> None:
    names = [row.name for row in table_of(comparison()).rows]
    assert names == ["softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn"]


def test_markdown_is_one_well_formed_table() -> None:
    headers = table_headers(table_of(comparison()))
    lines = markdown_table(table_of(comparison()), ["a note"]).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 6
    assert {line.count("|") for line in table} == {len(headers) + 1}
    assert lines[-2:] == ["", "- a note"]  # a table ends at an empty line


def test_a_title_with_a_bar_does_not_break_the_table() -> None:
    results = comparison(mixers=1)
    results["mixers"][0]["title"] = "a|b"
    assert "| a\\|b |" in markdown_table(table_of(results), [])


def test_cells_show_mean_deviation_and_ratio() -> None:
    results = results_of(softmax=[(0.87, 10.0), (0.89, 10.0)], csp=[(0.97, 25.0), (0.99, 25.0)])
    softmax, csp = table_cells(table_of(results))
    assert [cell.text for cell in softmax[1:5]] == [
        "2", "87.00 ± 1.41", "88.00 ± 1.41", "10.0 (1.00x)",
    ]  # fmt: skip
    assert csp[4].text == "25.0 (2.50x)"
    assert csp[5].text == "1.00 MiB (1.00x)"
    assert [cell.best for cell in csp] == [False, False, True, True, True, False, True, False]
    assert not softmax[5].best  # equal memory: no mixer is better


def test_one_seed_has_no_spread() -> None:
    cells = table_cells(table_of(results_of(softmax=[(0.91, 10.0)])))
    assert cells[0][2].text == "90.00"
    assert not any(cell.best for cell in cells[0])


def bold(results: dict[str, Any], column: int) -> list[bool]:
    return [row[column].best for row in table_cells(table_of(results))]


def test_no_score_or_speed_of_one_seed_is_bold() -> None:
    results = results_of(softmax=[(0.50, 10.0)], csp=[(0.99, 90.0)])
    assert [any(bold(results, column)) for column in (2, 3, 4)] == [False] * 3
    assert bold(results, 6) == [False, True]  # parameters are counted
    several = results_of(softmax=[(0.50, 10.0)] * 2, csp=[(0.99, 90.0)] * 2)
    assert bold_note(table_of(results)) != bold_note(table_of(several))
    assert "accuracy" in softmax_note(table_of(results))


def test_the_least_memory_is_bold() -> None:
    results = results_of(softmax=[(0.9, 10.0)], csp=[(0.9, 10.0)], tssa=[(0.9, 10.0)])
    for entry, memory in zip(results["mixers"], (2**21, 2**20, 2**22), strict=True):
        entry["peak_memory_bytes"] = memory
    assert bold(results, 5) == [False, True, False]


@pytest.mark.parametrize(
    ("third", "expected"),
    [
        ((0.955, 0.965), [False, False, True]),
        ((0.915, 0.925), [True, False, True]),
        ((0.90, 0.90), [False, False, False]),
    ],
)
def test_bold_scores_do_not_differ_from_the_best(
    third: tuple[float, float], expected: list[bool]
) -> None:
    """With 300 samples, an accuracy of 0.9 has a standard error of 1.7 %."""
    results = results_of(
        softmax=[(0.895, 1.0), (0.905, 1.0)],
        tssa=[(0.85, 1.0), (0.86, 1.0)],
        csp=[(third[0], 1.0), (third[1], 1.0)],
    )
    assert bold(results, 2) == expected


def test_scores_are_compared_seed_by_seed() -> None:
    """Check that seeds that are hard for both mixers do not hide a difference."""
    ours, theirs = (0.50, 0.70, 0.90), (0.47, 0.66, 0.87)
    results = results_of(
        softmax=[(score, 1.0) for score in theirs], csp=[(score, 1.0) for score in ours]
    )
    assert bold(results, 2) == [False, False]
    results["task"]["sizes"] = dict.fromkeys(("train", "validation", "test"), 10**6)
    assert bold(results, 2) == [False, True]
    for entry in results["runs"]:  # the same scores, paired with other seeds
        if entry["mixer"] == "csp":
            entry["seed"] = (entry["seed"] + 1) % 3
    assert bold(results, 2) == [False, False]


def test_without_two_common_seeds_no_score_is_bold() -> None:
    results = results_of(softmax=[(0.5, 1.0)], csp=[(0.9, 1.0), (0.91, 1.0)])
    assert bold(results, 2) == [False, False]
    assert difference_cells(table_of(results)) == []


def pairs_of(table: Table) -> list[tuple[str, Decision]]:
    """Return each mixer and the decision about its difference from softmax attention."""
    return [(of.row.name, of.decision) for of in table.differences]


def test_differences_from_softmax() -> None:
    results = results_of(
        softmax=[(0.80, 1.0), (0.82, 1.0), (0.81, 1.0)],
        csp=[(0.90, 1.0), (0.93, 1.0), (0.91, 1.0)],
        tssa=[(0.80, 1.0), (0.81, 1.0), (0.82, 1.0)],
    )
    text = markdown_differences(table_of(results))
    columns = next(line for line in text.splitlines() if line.startswith("| Mixer |")).split(" | ")
    assert len(columns) == 5
    assert "accuracy" in columns[1]
    assert "95 %" in columns[2]
    assert columns[3] == "p"
    csp, tssa = difference_cells(table_of(results))
    assert csp[:2] == ["Csp", "+10.33"]
    assert tssa[0:2] == ["Tssa", "+0.00"]
    first, second = (of.decision for of in table_of(results).differences)
    alone = first.difference
    assert first.probability == pytest.approx(2 * alone.probability)
    assert alone.low < 0.1033 < alone.high
    assert (first.is_shown, first.is_loss, second.is_shown) == (True, False, False)


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (1.0, "1.000"), (0.0505, "0.051"), (0.0501, "0.050"), (0.05, "0.050"),
        (0.0499, "< 0.050"), (0.0494, "0.049"), (0.001, "0.001"), (0.0009, "< 0.001"),
    ],
)  # fmt: skip
def test_p_value_is_not_rounded_across_the_significance_level(
    probability: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rifflemix.lab.comparison.decisions.holm",
        lambda found: [probability] * len(found),
    )
    scores = {"softmax": [(0.80, 1.0), (0.82, 1.0)], "csp": [(0.9, 1.0), (0.93, 1.0)]}
    table = table_of(results_of(**scores))
    ((*_, shown, _),) = difference_cells(table)
    assert shown == text
    assert table.differences[0].decision.is_shown == (text.startswith("<") or text < "0.050")


def test_lower_perplexity_is_not_a_loss() -> None:
    results = results_of(softmax=[(0.80, 1.0), (0.80, 1.0)], csp=[(0.99, 1.0), (0.99, 1.0)])
    ((_, of),) = pairs_of(table_of(with_perplexity(results)))
    assert of.difference.mean < 0
    assert (of.is_shown, of.is_loss) == (True, False)


def test_speed_is_bold_if_every_seed_is_faster() -> None:
    apart = results_of(softmax=[(0.9, 10.0), (0.9, 12.0)], csp=[(0.9, 13.0), (0.9, 20.0)])
    assert bold(apart, 4) == [False, True]
    mixed = results_of(softmax=[(0.9, 10.0), (0.9, 14.0)], csp=[(0.9, 20.0), (0.9, 13.0)])
    assert bold(mixed, 4) == [False, False]


def test_pooled_spread() -> None:
    assert pooled_spread([]) is None
    assert pooled_spread([(None, 1)]) is None
    assert pooled_spread([(3.0, 2), (None, 1), (1.0, 5)]) == pytest.approx((13 / 5) ** 0.5)


def at_chance(**changes: Any) -> dict[str, Any]:
    """Build results near the majority-class baseline.

    With 300 test samples, CSP is 2.3 % above the baseline. Its speed is far ahead of softmax.
    """
    results = results_of(
        softmax=[(0.26, 10.0), (0.26, 10.0)], csp=[(0.283, 99.0), (0.283, 99.0)]
    )  # on the validation split; test is 0.01 lower
    results["task"]["majority_share"] = {"validation": 0.2, "test": 0.25}
    results["task"].update(changes)
    return results


def test_no_score_is_bold_at_chance_level_and_a_note_says_why() -> None:
    cells = table_cells(table_of(at_chance()))
    assert not any(cell.best for row in cells for cell in row)
    assert "**" not in markdown_table(table_of(at_chance()), [])
    assert re.search(r"27\.30 ± 0\.00 %.*25\.00 %", bold_note(table_of(at_chance())))
    assert bold_note(table_of(at_chance())) in comparison_notes(table_of(at_chance()))
    sorting = at_chance(blind_answer="an answer of the task")
    assert re.search(r"an answer of the task.*25\.00 %", bold_note(table_of(sorting)))
    assert "accuracy" not in softmax_note(table_of(at_chance()))


@pytest.mark.parametrize("is_old", [True, False])
def test_without_a_majority_share_the_baseline_is_uniform_guessing(is_old: bool) -> None:
    results = at_chance(num_classes=4, majority_share=None)
    if is_old:
        del results["task"]["majority_share"]
    assert "25.00 %" in bold_note(table_of(results))
    results["task"]["num_classes"] = 10
    assert " 10.00 %" not in bold_note(table_of(results))
    assert "27.30" not in bold_note(table_of(results))


def test_without_one_class_per_sample_there_is_no_chance_level() -> None:
    assert "25.00" not in bold_note(table_of(at_chance(num_classes=4, majority_share={})))
    assert table_of(at_chance(majority_share={})).rows[0].chance is None


def test_scores_above_chance_are_ranked() -> None:
    sizes = {"train": 1000, "validation": 300, "test": 30_000}
    assert bold(at_chance(sizes=sizes), 2) == [False, True]
    assert "25.00" not in bold_note(table_of(at_chance(sizes=sizes)))


def test_without_softmax_there_are_no_relative_values() -> None:
    cells = table_cells(table_of(results_of(csp=[(0.9, 10.0)])))
    assert cells[0][4].text == "10.0"
    alone = softmax_note(table_of(results_of(csp=[(0.9, 10.0)])))
    assert "softmax" in alone
    assert "Csp" not in alone


def test_no_difference_is_shown_if_softmax_failed() -> None:
    results = results_of(softmax=[(0.8, 1.0), (0.8, 1.0)], csp=[(0.9, 1.0), (0.9, 1.0)])
    results["runs"] = [run for run in results["runs"] if run["mixer"] != "softmax"]
    results["mixers"][0] = mixer("softmax", [], None)
    assert table_of(results).differences == []


def test_mixers_without_a_run_are_shown_as_missing() -> None:
    cells = table_cells(table_of(unfinished()))
    assert [cell.text for cell in cells[0][1:6]] == ["0", "-", "-", "-", "-"]
    assert terminal_table(table_of(unfinished())).row_count == 2


def test_mixer_with_one_seed_does_not_hide_other_differences() -> None:
    two = {"softmax": [(0.9, 9.0), (0.9, 9.0)], "csp": [(0.5, 4.0), (0.5, 4.0)]}
    results = results_of(**two, tssa=[(0.95, 20.0)])
    results["failed_runs"] = [
        {"mixer": "tssa", "seed": 1, "folder": "a", "error": "training diverged"}
    ]
    assert bold(results, 2) == bold(results, 4) == [True, False, False]
    note = softmax_note(table_of(results))
    assert note.count("Tssa") == 2  # its diverged run, and its missing score comparison
    results["failed_runs"] = []
    assert softmax_note(table_of(results)).count("Tssa") == 1


def test_a_mixer_that_shares_no_two_seeds_with_the_best_is_not_bold() -> None:
    softmax, far = [(0.9, 9.0), (0.91, 9.0)], [(0.3, 9.0), (0.31, 9.0), (0.3, 9.0)]
    results = results_of(softmax=softmax, csp=far, tssa=far)
    results["runs"] = [r for r in results["runs"] if (r["mixer"], r["seed"]) != ("tssa", 0)]
    results["mixers"] = [mixer(name, results["runs"], 2**20) for name in ("softmax", "csp", "tssa")]
    assert bold(results, 2) == [True, False, False]


def test_equal_counts_are_not_bold() -> None:
    results = results_of(softmax=[(0.9, 9.0), (0.9, 9.0)], tssa=[(0.9, 9.0), (0.9, 9.0)])
    for entry in results["mixers"]:
        entry["parameters"] = 7
    assert bold(results, 5) == bold(results, 6) == [False, False]


def test_softmax_is_not_faster_if_one_seed_was_slower() -> None:
    mixed = results_of(softmax=[(0.9, 8.0), (0.9, 12.0)], csp=[(0.9, 9.0), (0.9, 9.0)])
    faster = results_of(softmax=[(0.9, 10.0), (0.9, 12.0)], csp=[(0.9, 9.0), (0.9, 9.0)])
    assert (
        softmax_note(table_of(faster)).count("Csp")
        == softmax_note(table_of(mixed)).count("Csp") + 1
    )


def test_no_difference_is_not_shown_as_minus_zero() -> None:
    results = results_of(softmax=[(0.9, 9.0), (0.9, 9.0)], csp=[(0.9, 9.0), (0.9 - 1e-9, 9.0)])
    assert difference_cells(table_of(results))[0][1] == "+0.00"


@pytest.mark.parametrize("is_measured", [True, False])
def test_deviation_over_samples_counts_for_other_metrics_if_measured(
    is_measured: bool,
) -> None:
    """Seeds alone separate 20 from 19; 300 samples with a deviation of 60 do not."""
    results = with_perplexity(comparison(mixers=2), accuracy=False)
    for entry in results["runs"]:
        mean = {"softmax": 20.0, "csp": 19.0}[entry["mixer"]]
        entry["test"]["perplexity"] = mean + entry["seed"] / 100
        if is_measured:
            entry["test"]["perplexity_deviation"] = 60.0
    for of in results["mixers"]:
        own = [r["test"]["perplexity"] for r in results["runs"] if r["mixer"] == of["name"]]
        of["metric"]["test"] = summary(own)
    table = table_of(results)
    ((_, found),) = pairs_of(table)
    assert found.is_shown is not is_measured
    note = bold_note(table_of(results))
    for entry in results["runs"]:
        entry["test"].pop("perplexity_deviation", None)
    assert (note != bold_note(table_of(results))) is is_measured


def test_unmeasured_speed_is_missing() -> None:
    results = comparison(mixers=1, seeds=1)
    results["mixers"][0]["steps_per_second"] = None
    assert table_cells(table_of(results))[0][4].text == "-"
