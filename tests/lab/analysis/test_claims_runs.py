"""Tests of claims about training: the judges, and one small training up to its picture."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claims_modules import claims_module

import rifflemix.lab.recipes
from rifflemix.errors import InputError
from rifflemix.lab.train import TrainingDiverged
from small_recipes import QUICK, small

base, judges = claims_module("claims.base"), claims_module("claims.judges")
script = claims_module("run_claims")
listed = claims_module("claims.claims")
HOLDS, PART, FAILS, UNDECIDED = base.HOLDS, base.PART, base.FAILS, base.UNDECIDED


def data(unit: str = "%", noise: float = 0.1, **means: float) -> dict[str, Any]:
    """Build rows of three seeds with given means and noise."""
    draws = np.random.default_rng(0)
    size = {
        "steps": 10,
        "steps_of_the_paper": 100,
        "scale": 0.5,
        "batch_size": 8,
        "batch_size_of_the_paper": 64,
        "seeds": [0, 1, 2],
        "test_samples": 10_000,
    }
    rows = {
        row: {
            "unit": unit,
            "parameters": 1000,
            "diverged": [],
            "test": {str(seed): mean + noise * draws.normal() for seed in range(3)},
        }
        for row, mean in means.items()
    }
    return {"size": size, "rows": rows}


def test_better_means_significant_over_seeds_and_the_test_set() -> None:
    judge = judges.is_better(("a", "b"))
    assert judge(data(a=60.0, b=50.0)).verdict == HOLDS
    assert judge(data(a=50.0, b=60.0)).verdict == FAILS
    assert judge(data(a=50.5, b=50.0)).verdict == UNDECIDED, "the test set has an error, too"
    found = data(a=60.0, b=50.0)
    found["rows"]["a"]["test"] = {"0": 40.0, "1": 60.0, "2": 80.0}
    assert judge(found).verdict == UNDECIDED, "the seeds disagree"


def test_lower_is_better_for_perplexity() -> None:
    judge = judges.is_better(("a", "b"))
    assert judge(data("perplexity", a=40.0, b=50.0)).verdict == HOLDS
    assert judge(data("perplexity", a=50.0, b=40.0)).verdict == FAILS


def test_every_pair_counts() -> None:
    judge = judges.is_better(("a", "b"), ("a", "c"))
    assert judge(data(a=60.0, b=50.0, c=70.0)).verdict == PART
    assert judge(data(a=80.0, b=50.0, c=70.0)).verdict == HOLDS
    assert judge(data(a=50.0, b=60.0, c=70.0)).verdict == FAILS


def test_comparable_means_within_the_margin() -> None:
    judge = judges.is_comparable(("a", "b"))
    assert judge(data(a=59.9, b=60.0)).verdict == HOLDS
    assert judge(data(a=65.0, b=60.0)).verdict == HOLDS
    assert judge(data(a=50.0, b=60.0)).verdict == FAILS
    assert judge(data(a=58.0, b=60.0, noise=5.0)).verdict == UNDECIDED


def test_splitting_is_compared_at_equal_parameters() -> None:
    judge = judges.splitting_does_not_help(("d1", "d2"), ("s",))

    def networks(split: float) -> dict[str, Any]:
        found = data(d1=50.0, d2=60.0, s=split)
        for row, parameters in (("d1", 1000), ("d2", 4000), ("s", 2000)):
            found["rows"][row]["parameters"] = parameters
        return found

    assert judge(networks(55.0)).verdict == HOLDS, "as good as a dense one of its size"
    assert judge(networks(50.0)).verdict == HOLDS
    assert judge(networks(60.0)).verdict == FAILS, "better than a dense one of its size"


def test_runs_that_diverged_leave_a_claim_open() -> None:
    found = data(a=60.0, b=50.0, c=50.0)
    found["rows"]["b"] |= {"test": {"0": 50.0}, "diverged": [1, 2]}
    judged = judges.is_better(("a", "b"))(found)
    assert judged.verdict == UNDECIDED
    assert "b 50.00 (2 diverged)" in judged.shows
    assert judges.is_better(("a", "b"), ("a", "c"))(found).verdict == PART
    assert judges.is_comparable(("b", "a"))(found).verdict == UNDECIDED
    found["rows"]["b"] |= {"test": {}, "diverged": [0, 1, 2]}
    assert judges.is_better(("a", "b"))(found).verdict == UNDECIDED
    split = judges.splitting_does_not_help(("a", "c"), ("b",))(found)
    assert split.verdict == UNDECIDED


def test_the_size_of_the_runs_is_next_to_the_numbers() -> None:
    shows = judges.is_better(("a", "b"))(data(a=60.0, b=50.0)).shows
    assert "50 % of the width, 10 of 100 steps, batches of 8 (paper: 64), 3 seeds" in shows


def test_claims_of_trainings_compare_rows_that_exist() -> None:
    """Check that a judge finds every row that it names in the data of its claim."""
    trained = [of for of in listed.JUDGED.values() if isinstance(of[0], base.Runs)]
    assert len(trained) == 14
    for evidence, judge in trained:
        found = data("%", 0.1, **dict.fromkeys(evidence.rows, 50.0))
        for number, row in enumerate(found["rows"].values(), start=1):
            row["parameters"] = 1000 * number
        assert judge(found).verdict in base.VERDICTS
        recipes = [rifflemix.lab.recipes.get_recipe(name) for name in evidence.rows.values()]
        tasks = [(recipe.task, recipe.task_options) for recipe in recipes]
        assert all(task == tasks[0] for task in tasks)


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Build two quickly trained rows in an empty working directory."""
    made = {
        name: replace(
            small(model_settings={"mixer": name, "dim": 8, "num_heads": 2}),
            name=f"csp/small-{name}",
            train=replace(QUICK, max_steps=8, warmup_steps=0),
        )
        for name in ("softmax", "csp")
    }
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "get_recipe", lambda name: made[name])
    monkeypatch.setattr(base, "NUMBERS", tmp_path / "claims.csv")
    evidence = base.Runs("small", {"dense": "softmax", "sparse": "csp"}, 4, 8, 0.5, seeds=(0, 1))
    monkeypatch.setattr(script, "EVIDENCE", {"small": evidence})
    return evidence


@pytest.mark.slow
def test_rows_are_trained_kept_and_judged(small_rows: Any, tmp_path: Path) -> None:
    assert script.main(["small"]) == 0
    stored = base.stored("small")
    size = stored["data"]["size"]
    assert (size["steps"], size["steps_of_the_paper"], size["scale"]) == (4, 8, 0.5)
    assert list(stored["data"]["rows"]) == ["dense", "sparse"]
    folder = tmp_path / "runs" / "small" / "dense" / "seed1"
    result = json.loads((folder / "results.json").read_text())
    row = stored["data"]["rows"]["dense"]
    assert row["test"]["1"] == result["ours"]
    assert row["curves"]["1"][-1][0] == 4
    assert judges.is_better(("sparse", "dense"))(stored["data"]).verdict in base.VERDICTS


@pytest.mark.slow
def test_a_stopped_training_continues(
    small_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(script.StopRequest, "__call__", lambda self: True)
        assert script.main(["small"]) == 130
    assert base.stored("small") is None, "no verdict without a whole run"
    assert script.main(["small"]) == 0
    assert base.stored("small") is not None


@pytest.mark.slow
def test_another_checkout_trains_only_missing_runs(
    small_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, trained = script.run_reproduction, []

    def run(plan: Any, **options: Any) -> Any:
        trained.append((plan.recipe.name, plan.seed))
        if len(trained) == 3:
            options["should_stop"] = lambda: True
        return right(plan, **options)

    monkeypatch.setattr(script, "run_reproduction", run)
    assert script.main(["small"]) == 130
    shutil.rmtree(tmp_path / "runs")
    assert script.main(["small"]) == 0
    assert trained[:2] == [("csp/small-softmax", 0), ("csp/small-csp", 0)]
    assert trained[2:] == [
        ("csp/small-softmax", 1), ("csp/small-softmax", 1), ("csp/small-csp", 1)
    ]  # fmt: skip
    assert base.measurements(base.NUMBERS).keys() == {"small"}
    rows = base.stored("small")["data"]["rows"]
    assert [list(row["test"]) for row in rows.values()] == [["0", "1"], ["0", "1"]]
    assert rows["dense"]["wall_seconds"] > 0


@pytest.mark.slow
def test_a_row_that_diverges_is_kept_without_a_value(
    small_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = script.run_reproduction

    def run(plan: Any, **options: Any) -> Any:
        if plan.recipe.name.endswith("csp") and plan.seed == 1:
            raise TrainingDiverged("the loss is not finite")
        return right(plan, **options)

    monkeypatch.setattr(script, "run_reproduction", run)
    assert script.main(["small"]) == 0
    rows = base.stored("small")["data"]["rows"]
    assert list(rows["sparse"]["test"]) == ["0"]
    assert rows["sparse"]["diverged"] == [1]
    assert list(rows["dense"]["test"]) == ["0", "1"]


def test_unknown_evidence_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["csp-head"]) == 2
    assert "csp-heads" in capsys.readouterr().err


def test_a_command_that_fails_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(base, "NUMBERS", tmp_path / "claims.csv")
    failed = subprocess.CompletedProcess([], 2)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: failed)
    wrong = base.Analysis("nothing-spectrum", "nowhere")
    with pytest.raises(InputError, match="command"):
        script.measure(wrong)
    assert base.stored("nothing-spectrum") is None
