"""Tests of the choice of weights, and of results and reports with both values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.json_values import encode
from rifflemix.lab.recipes import Recipe, get_recipe, registry
from rifflemix.lab.reproduction import (
    ReproduceOptions,
    load_results,
    plan_reproduction,
    run_reproduction,
)
from rifflemix.lab.reproduction.page import report_files
from rifflemix.lab.reproduction.plan import read_initial_weights
from rifflemix.lab.reproduction.sweep import plan_sweep, run_sweep
from rifflemix.lab.reproduction.tables import report_entries, summary_rows
from small_recipes import QUICK, made_up, record_of, small, write

pytestmark = pytest.mark.usefixtures("no_matmul_timing")

# The best of three evaluations is not the last evaluation.
HIGH_RATE = replace(QUICK, max_steps=9, eval_every=3, lr=0.05)


def run(out: Path, recipe: Recipe, **options: Any) -> dict[str, Any]:
    return encode(run_reproduction(plan_reproduction(recipe, out, ReproduceOptions(**options))))


@pytest.mark.parametrize("weights", ["best", "last"])
def test_results_contain_both_values_and_the_choice(tmp_path: Path, weights: Any) -> None:
    results = run(tmp_path / "run", small(train=HIGH_RATE, weights=weights))
    tests = results["result"]["tests"]
    assert results["ours_best"] == 100 * tests["best"]["accuracy"]
    assert results["ours_last"] == 100 * tests["last"]["accuracy"]
    assert results["ours_best"] != results["ours_last"], "the test needs two different values"
    assert (results["weights"], results["ours"]) == (weights, results[f"ours_{weights}"])
    assert (
        results["protocol"]["model_chosen_on"]
        == {"best": "validation", "last": "last step"}[weights]
    )
    labels = dict(summary_rows(record_of(results)))
    assert labels["last step (test)"] == f"{results['ours_last']:.2f} %"
    assert labels["best evaluation (test)"] == f"{results['ours_best']:.2f} %"
    assert weights in labels["ours is of"]


def test_reports_keep_runs_of_different_choices_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small(train=QUICK, weights="last")
    monkeypatch.setattr(registry, "_RECIPES", {recipe.name: lambda: recipe})
    write(tmp_path / "a.json", made_up(recipe=recipe, ours=61.0, ours_last=61.0, ours_best=64.5))
    chosen = recipe.choosing("best")
    write(tmp_path / "b.json", made_up(recipe=chosen, ours=66.0, ours_last=62.0, ours_best=66.0))
    write(tmp_path / "old.json", made_up(recipe=chosen, ours=70.0, seed=1))
    found = load_results([tmp_path])
    entries = {entry["weights"]: entry for entry in report_entries(found)}
    assert entries["last"]["ours"] == [61.0]
    assert (entries["last"]["ours_last"], entries["last"]["ours_best"]) == ([61.0], [64.5])
    # The older version chose by validation and has no value for the last step.
    assert entries["best"]["ours"] == entries["best"]["ours_best"] == [66.0, 70.0]
    assert entries["best"]["ours_last"] == [62.0]
    text = report_files(found, tmp_path)["report.md"].decode()
    assert "| last | 61.00 | 64.50 |" in text
    assert "| best | 62.00 | 68.00 |" in text


def test_a_value_that_is_not_comparable_has_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small(train=QUICK, not_comparable="another quantity")
    results = run(tmp_path / "run", recipe)
    assert results["printed"] == 50.0
    assert results["difference"] is None
    labels = dict(summary_rows(record_of(results)))
    assert (labels["difference"], labels["no difference"]) == ("-", "another quantity")
    monkeypatch.setattr(registry, "_RECIPES", {recipe.name: lambda: recipe})
    text = report_files(load_results([tmp_path]), tmp_path)["report.md"].decode()
    assert f"**{results['ours']:.2f} (not comparable)**" in text


def test_the_command_chooses_the_weights(tmp_path: Path, cli: Cli, listed: list[Recipe]) -> None:
    wrong = cli("reproduce", "test/digits", "--out", tmp_path / "run", "--weights", "first")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "weights" in wrong.err
    assert not (tmp_path / "run").exists()
    arguments = ("reproduce", "test/digits", "--out", tmp_path / "run", "--weights", "last")
    shown = cli(*arguments, "--json")
    assert shown.code == 0, shown.err
    results = json.loads(shown.out)
    assert (results["weights"], results["recipe"]["weights"]) == ("last", "last")
    assert results["ours"] == results["ours_last"]


@pytest.mark.slow
def test_another_run_starts_from_the_weights_that_count(tmp_path: Path) -> None:
    for weights in ("best", "last"):
        folder = tmp_path / weights
        results = run(folder, small(train=HIGH_RATE, weights=weights))
        start = read_initial_weights(folder)
        step = results["steps"] if weights == "last" else results["result"]["best_step"]
        assert start.origin.step == step
    file = tmp_path / "last" / "run" / "last.safetensors"
    last, _ = read_tensors(file)
    assert all((start.weights[name] == tensor).all() for name, tensor in last.items())
    file.unlink()
    with pytest.raises(InputError, match="start_from"):
        read_initial_weights(tmp_path / "last")


def stop_after(updates: int) -> Callable[[], bool]:
    asked = iter([False] * updates)
    return lambda: next(asked, True)


def test_unfinished_run_of_other_settings_is_refused_unchanged(tmp_path: Path) -> None:
    earlier, now = small(train=QUICK), small(train=QUICK, weights="last")
    out = tmp_path / "run"
    run_reproduction(plan_reproduction(earlier, out), should_stop=stop_after(3))
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    smoothed = small(train=replace(QUICK, label_smoothing=0.2))
    data = small(train=QUICK, task_options={"patch_size": 2})
    for recipe, setting in ((now, "weights"), (smoothed, "label_smoothing"), (data, "patch_size")):
        with pytest.raises(InputError, match=setting) as caught:
            run_reproduction(plan_reproduction(recipe, out))
        assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert run_reproduction(plan_reproduction(earlier, out)).status == "complete"


@pytest.mark.slow
def test_smaller_batches_are_smaller_in_tokens(tmp_path: Path) -> None:
    recipe = get_recipe("sinkhorn/table1-sort-transformer")
    sizes = {"num_train": 60, "num_validation": 8, "num_test": 8}
    recipe = replace(
        recipe,
        task_options={**recipe.task_options, **sizes, "max_length": 6, "test_max_length": 9},
        model_settings={**recipe.model_settings, "dim": 16, "num_layers": 1, "num_heads": 2},
        train=replace(recipe.train, max_steps=2, warmup_steps=1, eval_every=1),
    )
    plan = plan_reproduction(recipe, tmp_path / "run", ReproduceOptions(batch_size=15))
    assert plan.recipe.train.token_batches == (2_048, 256)
    results = run_reproduction(plan)
    assert results.is_reduced
    assert results.ours == results.ours_last
    assert results.utilisation is not None
    assert results.utilisation.flops_per_step > 0


@pytest.mark.slow
def test_sweep_uses_the_weights_of_its_recipe(tmp_path: Path) -> None:
    plan = plan_sweep(
        small(train=HIGH_RATE, weights="last"), {"lr": [0.05]}, [0], tmp_path / "sweep"
    )
    results = encode(run_sweep(plan))
    alone = run(tmp_path / "run", small(train=HIGH_RATE, weights="last"))
    assert results["runs"][0]["test"]["accuracy"] == alone["ours_last"] / 100
    assert results["protocol"]["model_chosen_on"] == "last step"
