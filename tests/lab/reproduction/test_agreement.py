"""Tests of differences from reported values: standard errors and incomparable runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from document_scripts import load_script
from rifflemix.lab.recipes import Recipe, get_recipe, registry
from rifflemix.lab.reproduction import load_results
from rifflemix.lab.reproduction.agreement import (
    OTHER_DATA,
    OTHER_SETTINGS,
    Agreement,
    agreement,
    changed_settings,
)
from rifflemix.lab.reproduction.page import report_files
from rifflemix.lab.reproduction.tables import paper_tables, report_entries, summary_rows
from small_recipes import QUICK, made_up, record_of, small, write


def binomial(percent: float, samples: int) -> float:
    share = percent / 100
    return 100 * math.sqrt(share * (1 - share) / samples)


@pytest.mark.parametrize(("ours", "reported", "samples"), [(60.0, 50.0, 872), (86.2, 82.5, 25_000)])
def test_error_of_a_difference_combines_both_errors(
    listed: list[Recipe], ours: float, reported: float, samples: int
) -> None:
    run = made_up(recipe=small(train=QUICK, printed=reported), ours=ours)
    run["task"]["sizes"] = {"train": 10, "test": samples}
    found = agreement([record_of(run)])
    assert found is not None
    assert found.difference == pytest.approx(ours - reported)
    errors = binomial(ours, samples), binomial(reported, samples)
    assert (found.reproduced_error, found.reported_error) == pytest.approx(errors)
    assert found.error == pytest.approx(math.hypot(*errors))
    assert found.unknown == ""


def test_a_difference_within_two_errors_of_both_is_not_beyond() -> None:
    """With 872 sentences at 75 %, 4 points exceed 2 x 1.47, but not 2 x 2.07."""
    one = binomial(75.0, 872)
    assert 2 * one < 4.0 < 2 * math.hypot(one, one)
    assert Agreement(4.0, one, None).is_beyond
    assert not Agreement(4.0, one, one).is_beyond
    assert Agreement(-4.5, one, one).is_beyond
    assert not Agreement(99.0, None, None).is_beyond


def test_mean_over_seeds_includes_the_error_of_the_test_split(listed: list[Recipe]) -> None:
    runs = [made_up(seed=seed, ours=ours) for seed, ours in enumerate((60.0, 62.0, 64.0))]
    found = agreement([record_of(run) for run in runs])
    assert found is not None
    assert found.difference == pytest.approx(12.0)
    assert found.reproduced_error == pytest.approx(binomial(62.0, 10_000))


def test_metric_that_is_not_a_proportion_has_only_the_measured_error(listed: list[Recipe]) -> None:
    recipe = small(train=QUICK, name="gone/away", metric="mae", unit="eV", printed=0.13)
    run = made_up(recipe=recipe, ours=0.15, difference=0.02)
    run["result"]["test"] = {"mae": 0.15, "mae_deviation": 0.4}
    found = agreement([record_of(run)])
    assert found is not None
    assert (found.reproduced_error, found.reported_error) == (pytest.approx(0.004), None)
    assert (found.error, found.is_beyond) == (pytest.approx(0.004), True)
    assert found.unknown == "print"
    assert "the error of print is unknown" in dict(summary_rows(record_of(run)))["standard error"]
    del run["result"]["test"]["mae_deviation"]
    unknown = agreement([record_of(run)])
    assert unknown is not None
    assert (unknown.error, unknown.is_beyond) == (None, False)
    assert "standard error" not in dict(summary_rows(record_of(run)))


def test_a_metric_of_another_test_split_counts_its_samples(listed: list[Recipe]) -> None:
    run = made_up(recipe=small(train=QUICK, name="gone/away", metric="real_accuracy"))
    run["task"]["sizes"] = {"test": 50_000, "real": 400}
    found = agreement([record_of(run)])
    assert found is not None
    assert found.reported_error == pytest.approx(binomial(50.0, 400))


def test_the_summary_of_a_run_has_the_error_of_both_values(listed: list[Recipe]) -> None:
    rows = dict(summary_rows(record_of(made_up())))
    error = math.hypot(binomial(60.0, 10_000), binomial(50.0, 10_000))
    assert rows["difference"] == "+10.00"
    assert rows["standard error"] == f"{error:.2f} %, of both values"
    short = made_up(recipe=small(train=QUICK).shortened(4), steps=4, is_reduced=True)
    assert "standard error" not in dict(summary_rows(record_of(short)))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a task option": ({"task_options": {"patch_size": 2}}, OTHER_DATA),
    "another task": ({"task": "sort", "task_options": {}}, OTHER_DATA),
    "the model": ({"model_settings": {"mixer": "tssa", "dim": 32, "num_heads": 2}}, OTHER_SETTINGS),
    "the rate": ({"train": replace(QUICK, lr=0.5)}, OTHER_SETTINGS),
    "the steps": ({"train": replace(QUICK, max_steps=16)}, OTHER_SETTINGS),
    "label smoothing": ({"train": replace(QUICK, label_smoothing=0.1)}, OTHER_SETTINGS),
    "notes": ({"notes": ("something new",)}, ""),
    "a seed": ({"train": replace(QUICK, seed=3)}, ""),
    "a precision": ({"train": replace(QUICK, precision="bf16")}, ""),
    "an option at its default": ({"task_options": {"patch_size": 4, "max_samples": None}}, ""),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_runs_with_other_data_or_settings_are_separate_from_the_recipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    """Change the recipe after the run, and keep the run's file as it is."""
    today = small(**{"train": QUICK, **change})
    monkeypatch.setattr(registry, "_RECIPES", {today.name: lambda: today})
    run = made_up()
    assert changed_settings(record_of(run)) == expected
    assert (agreement([record_of(run)]) is None) == bool(expected)
    write(tmp_path / "run.json", run)
    found = load_results([tmp_path])
    assert paper_tables(found)[0].counts() == (1, 1, 0 if expected else 1)
    text = report_files(found, tmp_path)["report.md"].decode()
    assert f"| TSSA | 50.00 / **60.00**{'†' if expected else ''} |" in text
    cell = expected or "+10.00 (0.70)"
    assert f"| TSSA | Digits | 50.00 | 60.00 | {cell} |" in text
    (entry,) = report_entries(found)
    assert entry["changed"] == expected
    assert (entry["difference"] is None) == bool(expected)


def test_a_new_run_is_not_averaged_with_one_of_other_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    today = small(train=QUICK, task_options={"patch_size": 2})
    monkeypatch.setattr(registry, "_RECIPES", {today.name: lambda: today})
    write(tmp_path / "old.json", made_up(ours=70.0))
    write(tmp_path / "new.json", made_up(recipe=today, ours=60.0, seed=1))
    found = load_results([tmp_path])
    (table,) = paper_tables(found)
    assert table.counts() == (1, 1, 1)
    entry = table.at("TSSA", "Digits")
    assert entry is not None
    assert entry.values == [60.0]
    text = report_files(found, tmp_path)["report.md"].decode()
    assert "| TSSA | 50.00 / **60.00** |" in text
    assert "| TSSA | Digits | 50.00 | 70.00 | other data |" in text


def test_stored_results_of_changed_data_have_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Load real run files and give their recipes another `max_length`."""
    store = load_script("benchmarks/store.py")
    stored = {name: record_of(store.load(name).content) for name in store.names("reproduce/*")}
    found = [(Path(name), run) for name, run in stored.items()]
    names = {run.recipe.name for _, run in found if run.ours is not None}
    rows = [n for n in names if n.startswith(("sinkhorn/table6-sst", "sinkhorn/table6-imdb"))]
    recipes = {name: get_recipe(name) for name in names}
    for name in rows:
        options = {**recipes[name].task_options, "max_length": 77}
        recipes[name] = replace(recipes[name], task_options=options)
    monkeypatch.setattr(registry, "_RECIPES", {n: (lambda r=r: r) for n, r in recipes.items()})
    entries = {e["name"]: e for e in report_entries(found) if e["printed"] and e["ours"]}
    assert len(rows) >= 18
    assert {entries[name]["changed"] for name in rows} == {OTHER_DATA}
    left = [n for n, e in entries.items() if e["difference"] is not None and n not in rows]
    assert len(left) >= 8
    assert all(entries[name]["difference"] is None for name in rows)
