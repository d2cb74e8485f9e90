"""Check that a changed results.json of a comparison is restored from its run records."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rifflemix.errors import InputError
from rifflemix.json_values import encode
from rifflemix.lab.comparison import (
    CompareConfig,
    Comparison,
    default_budget,
    plan_comparison,
    run_comparison,
    train_config,
)


def start(out: Path) -> dict[str, Any]:
    train = train_config(
        default_budget("digits"), max_steps=2, batch_size=8, lr=1e-3, precision="no"
    )
    config = CompareConfig(
        task="digits",
        mixers=("average", "identity"),
        seeds=(0,),
        dim=16,
        num_layers=1,
        num_heads=2,
        train=replace(train, eval_every=2),
        task_options={"patch_size": 4},
    )
    return encode(run_comparison(plan_comparison(config, out)))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "out"
    start(folder)
    return folder


Results = dict[str, Any]

WRONG: dict[str, Callable[[Results], Any]] = {
    "a number": lambda results: 5,
    "runs: 5": lambda results: {**results, "runs": 5},
    "runs: [{}]": lambda results: {**results, "runs": [{}]},
    "runs twice": lambda results: {**results, "runs": results["runs"] * 2},
    "no environment": lambda results: {**results, "environment": {}},
    "mixers: null": lambda results: {**results, "mixers": None},
    "no runs": lambda results: {k: v for k, v in results.items() if k != "runs"},
    "a mixer of another comparison": lambda results: {
        **results, "runs": [{**results["runs"][0], "mixer": "csp"}]
    },
    "a number of a run": lambda results: {
        **results, "runs": [{**results["runs"][0], "best_step": 1}, *results["runs"][1:]]
    },
    "test: null": lambda results: {**results, "runs": [{**results["runs"][0], "test": None}]},
    "test without accuracy": lambda results: {
        **results, "runs": [{**results["runs"][0], "test": {}}]
    },
    "curve": lambda results: {
        **results, "runs": [{**results["runs"][0], "train_curve": [{"step": 1}]}]
    },
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_changed_results(change: Callable[[Results], Any], compared: Path, tmp_path: Path) -> None:
    out = shutil.copytree(compared, tmp_path / "out")
    path = out / "results.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(change(whole)))
    with contextlib.suppress(InputError):  # some changes leave a complete file of other runs
        assert Comparison.load(out).results != whole
    assert start(out) == whole
    assert json.loads(path.read_text()) == whole


def test_results_edited_to_complete(compared: Path, tmp_path: Path) -> None:
    out = shutil.copytree(compared, tmp_path / "out")
    path = out / "results.json"
    whole = json.loads(path.read_text())
    changed = copy.deepcopy(whole)
    del changed["runs"][1]  # "status" is still complete
    path.write_text(json.dumps(changed))
    again = start(out)
    assert [run["mixer"] for run in again["runs"]] == ["average", "identity"]
    assert json.loads(path.read_text()) == json.loads(json.dumps(again))


def test_results_with_edited_numbers(compared: Path, tmp_path: Path) -> None:
    out = shutil.copytree(compared, tmp_path / "out")
    path = out / "results.json"
    whole = json.loads(path.read_text())
    changed = copy.deepcopy(whole)
    changed["mixers"][0]["test"]["mean"] = 1.0
    changed["task"] = "<b>"
    path.write_text(json.dumps(changed))
    assert start(out) == whole
    assert json.loads(path.read_text()) == whole


def test_unchanged_results_are_not_written_again(compared: Path) -> None:
    path = compared / "results.json"
    before = path.stat().st_mtime_ns
    start(compared)
    assert path.stat().st_mtime_ns == before
