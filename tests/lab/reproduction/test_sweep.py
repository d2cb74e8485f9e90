"""Tests of `rifflemix sweep`: a recipe at every point of a grid."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rifflemix as rm
import rifflemix.cli
from rifflemix.cli.options import parse_grid
from rifflemix.json_values import encode
from rifflemix.lab.reproduction.sweep import collect_sweep, plan_sweep, run_sweep, sweep_defaults
from rifflemix.lab.reproduction.sweep_records import sweep_notes
from rifflemix.lab.runs.options import ReproduceOptions
from rifflemix.lab.runs.status import RunStatus, ShouldStop
from small_recipes import QUICK, small

HERE = ReproduceOptions(device="cpu", threads=1)
GRID = {"mixer_options.bias": [True, False], "lr": [1e-3, 1e-2]}


def start(out: Path, polls: int | None = None, **changes: Any) -> dict[str, Any]:
    left = None if polls is None else iter(range(polls))
    settings: dict[str, Any] = {"grid": GRID, "seeds": [0], "options": HERE, **changes}
    recipe = small(train=QUICK)
    plan = plan_sweep(recipe, settings["grid"], settings["seeds"], out, settings["options"])
    stop = None if left is None else lambda: next(left, None) is None
    return encode(run_sweep(plan, should_stop=stop))


def measured(results: dict[str, Any]) -> list[Any]:
    keys = ("settings", "seed", "folder", "validation", "test", "validation_curve", "parameters")
    return [[run[key] for key in keys] for run in results["runs"]]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("sweep") / "out"
    return out, start(out)


@pytest.mark.slow
def test_every_combination_is_run_with_its_settings(swept: tuple[Path, dict[str, Any]]) -> None:
    out, results = swept
    assert results["status"] == "complete"
    assert json.loads((out / "results.json").read_text()) == results
    points = [{"mixer_options.bias": b, "lr": lr} for b in (True, False) for lr in (1e-3, 1e-2)]
    assert [run["settings"] for run in results["runs"]] == points
    for run in results["runs"]:
        config = json.loads((out / run["folder"] / "config.json").read_text())
        assert config["config"]["lr"] == run["settings"]["lr"]
        options = config["model"]["settings"]["model_settings"]["mixer_options"]
        assert options == {"bias": run["settings"]["mixer_options.bias"]}
    with_bias, _, without, _ = results["runs"]
    assert with_bias["parameters"] > without["parameters"]
    for point, run in zip(results["points"], results["runs"], strict=True):
        assert point["test"]["values"] == [100 * run["test"]["accuracy"]]
        assert point["validation"]["values"] == [100 * run["validation"]["accuracy"]]
    table = (out / "table.md").read_text()
    assert "| True | 0.001 | 1 | " in table
    assert "**" not in table
    assert (out / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_stopped_sweep_resumes_bit_for_bit(
    swept: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    stopped = start(tmp_path / "out", polls=13)
    assert stopped["status"] == "partial"
    assert stopped["runs_done"] < 4
    assert f"{stopped['runs_done']} of 4" in (tmp_path / "out" / "table.md").read_text()
    loading = replace(HERE, num_workers=1)  # which does not change any number
    assert measured(start(tmp_path / "out", options=loading)) == measured(swept[1])


@pytest.mark.slow
def test_a_finished_sweep_keeps_its_results(
    swept: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that command and machine stay, because the next call trains nothing."""
    path = swept[0] / "results.json"
    before = path.read_bytes()
    monkeypatch.setattr(sys, "argv", ["another", "command"])

    def check(*_: object) -> None:  # a kill here would keep the file
        assert path.read_bytes() == before

    plan = plan_sweep(small(train=QUICK), GRID, [0], swept[0], HERE)
    assert encode(run_sweep(plan, on_status=check)) == json.loads(before)
    check()


def test_diverging_value_is_reported(tmp_path: Path) -> None:
    train = QUICK.to_dict() | {"warmup_steps": 0, "max_steps": 4}
    recipe = small(train=type(QUICK).from_dict(train))
    plan = plan_sweep(recipe, {"lr": [1e30]}, [0], tmp_path / "out", HERE)
    results = encode(run_sweep(plan))
    assert results["status"] == "complete"
    assert results["points"][0]["diverged"] == 1
    assert results["points"][0]["test"] is None
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| 1e+30 | 0, 1 diverged | - | - | - |" in table
    assert re.search(r"lr=1e\+30\b.*\b0: training diverged", table)


def test_smaller_batches_are_reported(tmp_path: Path) -> None:
    plan = plan_sweep(small(train=QUICK), {"lr": [1e-3]}, [0], tmp_path / "out", HERE)
    plan.out.mkdir()
    results = collect_sweep(plan)
    train = results.config["train"]
    smaller = replace(results, config={**results.config, "train": train | {"batch_size": 3}})
    (told,) = re.findall(r"8 of 8\b.*", sweep_notes(smaller)[0])
    assert re.findall(r"\d+", told) == ["8", "8", "1", "3", str(QUICK.batch_size)]
    # A swept batch size has a column.
    swept = replace(results, config={**results.config, "train": {}})
    (told,) = re.findall(r"8 of 8\b.*", sweep_notes(swept)[0])
    assert re.findall(r"\d+", told) == ["8", "8", "1"]


@pytest.mark.slow
def test_diverged_runs_are_not_trained_again_after_a_stop(tmp_path: Path) -> None:
    def started(told: list[RunStatus], stop: ShouldStop) -> dict[str, Any]:
        plan = plan_sweep(small(train=quick), {"lr": [1e30, 1e-3]}, [0], tmp_path / "out", HERE)
        return encode(run_sweep(plan, on_status=told.append, should_stop=stop))

    quick = replace(QUICK, warmup_steps=0, max_steps=4)
    told: list[RunStatus] = []
    stopped = started(told, lambda: bool(told) and told[-1].trial == "lr=0.001")
    assert [stopped["status"], stopped["runs_done"]] == ["partial", 1]
    again: list[RunStatus] = []
    results = started(again, lambda: False)
    assert results["status"] == "complete"
    assert results["failed_runs"] == stopped["failed_runs"]
    assert {status.trial for status in again} == {"lr=0.001"}


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "set:"),
        ({"mixer_options.bais": [True]}, r"'mixer_options\.bais'.*mixer_options.bias"),
        ({"seed": [1, 2]}, "test/digits 'seed'"),
        ({"num_workers": [1, 2]}, "test/digits 'num_workers'"),
        ({"max_steps": [1, 2]}, "test/digits 'max_steps'"),
        ({"lr": [0.1, -1.0]}, r"lr=-1\.0: lr: .*got -1\.0"),
        ({"num_heads": [2, 3]}, "num_heads=3: .*num_heads: .*dim"),
        ({"mixup": [0.0, 0.5]}, r"mixup=0\.5: mixup: .*digits"),
        ({"lr": [0.1, 0.1]}, r"lr: .*got 0\.1"),
    ],
    ids=str,
)
def test_invalid_grids_are_refused(grid: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(rm.InputError, match=words):
        plan_sweep(small(train=QUICK), grid, [0], tmp_path / "out", HERE)
    assert not (tmp_path / "out").exists()


def test_sweep_with_several_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(rm.InputError, match=r"sweep: .*torchrun"):
        plan_sweep(small(train=QUICK), GRID, [0], tmp_path / "out", HERE)
    assert not (tmp_path / "out").exists()


def test_too_many_runs_are_refused(tmp_path: Path) -> None:
    grid = {"lr": [step / 1e6 for step in range(1, 1001)]}
    with pytest.raises(rm.InputError, match=r"\b10,000\b.*got 1,000\b.*\b11\b"):
        plan_sweep(small(train=QUICK), grid, range(11), tmp_path / "out", HERE)


@pytest.mark.slow
def test_folder_of_another_grid_is_refused(swept: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(rm.InputError, match=r"grid\.lr.*\[0.001, 0.01\]"):
        start(swept[0], grid={**GRID, "lr": [1e-3]})


@pytest.mark.parametrize(
    ("pairs", "grid"),
    [
        (["lr=.1,1e-3"], {"lr": [0.1, 0.001]}),
        (["num_heads=1,2", "mixer_options.bias=true,false"],
         {"num_heads": [1, 2], "mixer_options.bias": [True, False]}),
        (["betas=[0.9,0.99],[0.8,0.9]"], {"betas": [[0.9, 0.99], [0.8, 0.9]]}),
    ],
)  # fmt: skip
def test_texts_are_converted_to_values(pairs: list[str], grid: dict[str, Any]) -> None:
    assert parse_grid(pairs, sweep_defaults(small(train=QUICK)), "test/digits") == grid


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["lr"], "--set: .*KEY=A,B,C, got 'lr'"),
        (["lr=0.1,"], "--set.*got '0.1,'"),
        (["lr=a"], "--set.*got 'a'"),
        (["lr=1", "lr=2"], "--set: .*got lr"),
        (["rl=1"], "test/digits 'rl'.*lr"),
    ],
)
def test_invalid_texts_are_refused(pairs: list[str], words: str) -> None:
    with pytest.raises(rm.InputError, match=words):
        parse_grid(pairs, sweep_defaults(small(train=QUICK)), "test/digits")


def test_on_the_command_line(
    swept: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("rifflemix.lab.recipes.get_recipe", lambda _: small(train=QUICK))
    words = "sweep test/digits --set mixer_options.bias=true,false --set lr=1e-3,1e-2 --threads 1"
    argv = ["rifflemix", *words.split(), "--device", "cpu", "--out", str(swept[0])]
    argv += ["--num-workers", "1"]  # which does not change any number
    monkeypatch.setattr(sys, "argv", argv)
    assert rifflemix.cli.main() == 0
    printed = capsys.readouterr().out
    assert "Test accuracy, %" in printed
    assert str(swept[0]) in printed


def test_settings_of_a_point_override_common_options(tmp_path: Path) -> None:
    """Apply common options first: they change only settings that the point leaves open."""
    options = ReproduceOptions(device="cpu", threads=1, scale=0.5, max_steps=4, precision="bf16")
    grid = {"dim": [8, 16], "warmup_steps": [1, 3], "eval_every": [1, 2]}
    plan = plan_sweep(small(train=QUICK), grid, [0], tmp_path / "out", options)
    assert len(plan.runs) == 8
    for point, run in plan.runs:
        assert run.recipe.model_settings["dim"] == point["dim"]
        assert run.recipe.train.warmup_steps == point["warmup_steps"]
        assert run.recipe.train.eval_every == point["eval_every"]
        assert (run.recipe.train.max_steps, run.recipe.train.precision) == (4, "bf16")


@pytest.mark.parametrize(
    ("grid", "options", "words"),
    [
        ({"batch_size": [4, 8]}, {"batch_size": 2}, "set: batch_size"),
        ({"precision": ["no", "bf16"]}, {"precision": "bf16"}, "set: precision"),
        ({"dim": [0]}, {"scale": 0.5}, r"dim=0: dim: .*\b1\b"),
        ({"num_heads": [0]}, {"scale": 0.5}, "num_heads=0: num_heads: .*got 0"),
        ({"mixer_options": ["x"]}, {"scale": 0.5}, "mixer_options: .*got 'x'"),
        ({"accumulation": [3]}, {}, "accumulation=3: batch_size: "),
    ],
)
def test_invalid_sweep_writes_no_files(
    tmp_path: Path, grid: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    here = ReproduceOptions(device="cpu", threads=1, **options)
    with pytest.raises(rm.InputError, match=words):
        plan_sweep(small(train=QUICK), grid, [0], tmp_path / "out", here)
    assert not (tmp_path / "out").exists()
