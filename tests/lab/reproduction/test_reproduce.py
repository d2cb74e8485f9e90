"""Tests of running a recipe: results.json, stopping, resuming and refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.files import read_tensors, write_json
from rifflemix.json_values import encode
from rifflemix.lab.experiments import only_run
from rifflemix.lab.recipes import Recipe, get_recipe, registry
from rifflemix.lab.reproduction import (
    FORMAT,
    ReproduceOptions,
    load_results,
    plan_reproduction,
    run_reproduction,
)
from rifflemix.lab.reproduction import run as reproduce_run
from rifflemix.lab.reproduction.page import report_files
from rifflemix.lab.reproduction.run import process_memory
from rifflemix.lab.reproduction.tables import summary_rows
from rifflemix.lab.tasks import Task
from rifflemix.lab.train import TrainingDiverged
from rifflemix.lab.train.run_folder import RunFolder
from small_recipes import QUICK, record_of, small

pytestmark = pytest.mark.usefixtures("no_matmul_timing")


def run(out: Path, recipe: Recipe | None = None, **options: Any) -> dict[str, Any]:
    """Plan and run a recipe."""
    running = {
        name: options.pop(name)
        for name in ("on_status", "should_stop", "time_is_up")
        if name in options
    }
    recipe = recipe or small(train=QUICK)
    return encode(
        run_reproduction(plan_reproduction(recipe, out, ReproduceOptions(**options)), **running)
    )


def stop_after(updates: int) -> Callable[[], bool]:
    asked = iter([False] * updates)
    return lambda: next(asked, True)


def outcome(folder: Path) -> dict[str, Any]:
    """Return the outputs of a run without its times."""
    results = json.loads((folder / "results.json").read_text())
    folder = only_run(folder)
    tensors, _ = read_tensors(folder / "checkpoint.safetensors")
    kept = ("ours", "difference", "validation", "steps", "is_reduced", "status")
    return {
        "results": {name: results[name] for name in kept},
        "curve": results["train_curve"],
        "history": results["result"]["validation"],
        "best": (folder / "best.safetensors").read_bytes(),
        "log": (folder / "log.jsonl").read_bytes(),
        "weights": {
            name: tensor.numpy().tobytes()
            for name, tensor in tensors.items()
            if name.startswith("model/")
        },
    }


# results.json


def test_results_of_a_whole_run(tmp_path: Path) -> None:
    results = run(tmp_path / "run", seed=3, keep_weights=True)
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results
    assert (results["format"], results["status"]) == (FORMAT, "complete")
    assert results["ours"] == 100 * results["result"]["test"]["accuracy"]
    assert results["printed"] == 50.0
    assert results["difference"] == pytest.approx(results["ours"] - 50.0)
    history = {entry["step"]: entry["accuracy"] for entry in results["result"]["validation"]}
    assert list(history) == [4, 8]
    assert list(RunFolder(only_run(tmp_path / "run")).kept_weights()) == [0, 4, 8]
    assert results["validation"] == 100 * max(history.values())
    assert (results["steps"], results["steps_planned"], results["is_reduced"]) == (8, 8, False)
    assert results["seed"] == results["recipe"]["train"]["seed"] == 3
    assert results["recipe"]["name"] == "test/digits"
    assert results["task"]["name"] == "digits"
    assert results["task"]["options"]["patch_size"] == 4
    assert results["task"]["sizes"] == {"train": 1087, "validation": 355, "test": 355}
    assert results["protocol"]["model_chosen_on"] == "validation"
    assert [point["step"] for point in results["train_curve"]] == [2, 4, 6, 8]
    assert results["peak_memory_bytes"] > 2**20
    assert results["wall_seconds"] == sum(
        results["seconds"][name] for name in ("train", "data", "evaluation", "checkpoint")
    )
    share = results["utilisation"]["flops_per_step"] * results["steps_per_second"] / 1e12
    assert results["utilisation"]["share"] == pytest.approx(share)
    place = results["environment"]
    assert results["command"] == place["command"]
    assert {"command", "git_commit", "time"} <= set(place), sorted(place)


def test_timed_matrix_product_is_not_in_the_memory_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = iter([11, 22])

    def measured(*args: Any) -> None:
        next(memory)

    monkeypatch.setattr(reproduce_run, "process_memory", lambda device: next(memory))
    monkeypatch.setattr(reproduce_run, "_utilisation", measured)
    assert run(tmp_path / "run")["peak_memory_bytes"] == 11


def test_memory_is_measured_on_the_training_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {"cuda:1": 7}.get)
    assert process_memory("cuda:1") == 7


@pytest.mark.parametrize(
    ("options", "steps", "width"),
    [
        ({"max_steps": 4}, 4, 1.0),
        ({"scale": 0.5}, 8, 0.5),
        ({"batch_size": 32}, 8, 1.0),
        ({"max_steps": 4, "scale": 0.5, "batch_size": 32, "precision": "bf16"}, 4, 0.5),
    ],
    ids=["steps", "scale", "batch", "all"],
)
def test_reduced_runs_are_marked(
    tmp_path: Path, options: dict[str, Any], steps: int, width: float
) -> None:
    results = run(tmp_path / "run", **options)
    assert results["is_reduced"]
    assert (results["steps"], results["steps_planned"]) == (steps, 8)
    assert results["recipe"]["width"] == width
    assert results["recipe"]["train"]["precision"] == options.get("precision", "no")
    assert results["recipe"]["train"]["batch_size"] == options.get("batch_size", 64)
    assert results["batch_size_planned"] == 64
    labels = dict(summary_rows(record_of(results)))
    assert re.findall(r"\d+", labels.get("batch", "")) == ["32", "64"] * ("batch_size" in options)
    assert re.findall(r"\d+", labels["steps"]) == [str(steps), "8"]
    assert "reduced run" in labels


def test_reported_metric_may_differ_from_the_selection_metric(tmp_path: Path) -> None:
    recipe = small(train=QUICK, metric="loss", unit="nats", printed=None)
    results = run(tmp_path / "run", recipe)
    best = max(results["result"]["validation"], key=lambda entry: entry["accuracy"])
    assert results["ours"] == results["result"]["test"]["loss"]
    assert results["validation"] == best["loss"]
    assert results["printed"] is None
    assert results["difference"] is None
    assert dict(summary_rows(record_of(results)))["printed"] == "-"


def test_metric_of_the_test_split_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = get_recipe("sinkhorn/table1-written-b8")
    recipe = replace(
        recipe,
        task_options={**recipe.task_options, "max_length": 6, "test_max_length": 8, "num_train": 40,
                      "num_validation": 4, "num_test": 4},
        model_settings={**recipe.model_settings, "dim": 16, "num_layers": 1, "num_heads": 2},
        train=replace(recipe.train, max_steps=2, batch_size=2, warmup_steps=1, eval_every=1),
    )  # fmt: skip
    results = run(tmp_path / "run", recipe)
    assert results["ours"] == results["result"]["test"]["free_running_edit_distance"]
    assert results["validation"] is None
    monkeypatch.setattr(registry, "_RECIPES", {recipe.name: lambda: recipe})
    found = load_results([tmp_path / "run"])
    assert b"edits" in report_files(found, tmp_path)["report.html"]


def test_seeds_differ_and_repeat(tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(tmp_path / name, seed=seed, max_steps=4)
        weights.append(outcome(tmp_path / name)["weights"])
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


# Stopping and resuming.


@pytest.mark.parametrize(
    "updates", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 6))]
)
def test_stopped_and_resumed_run_equals_an_uninterrupted_run(
    tmp_path: Path, updates: int, straight: Path
) -> None:
    partial = run(tmp_path / "broken", should_stop=stop_after(updates))
    assert partial["status"] == "partial"
    assert partial["ours"] is None
    assert partial["difference"] is None
    assert 0 < partial["steps"] < 8
    assert partial["is_reduced"]
    whole = run(tmp_path / "broken", num_workers=updates % 2)  # which does not change any number
    assert whole["status"] == "complete"
    assert outcome(tmp_path / "broken") == outcome(straight)


def test_end_of_the_budget_stops_cleanly(tmp_path: Path, straight: Path) -> None:
    partial = run(tmp_path / "budget", time_is_up=stop_after(3))
    assert partial["status"] == "partial"
    assert 0 < partial["steps"] < 8
    assert run(tmp_path / "budget", time_is_up=lambda: False)["status"] == "complete"
    assert outcome(tmp_path / "budget") == outcome(straight)


@pytest.mark.slow
def test_evaluation_is_finished_after_the_budget_ends(tmp_path: Path, straight: Path) -> None:
    """Otherwise a run with an evaluation longer than its budget would never finish."""
    for _ in range(20):
        results = run(tmp_path / "budget", time_is_up=lambda: True)
        if results["status"] == "complete":
            break
    else:
        raise AssertionError("the run does not come to its end")
    assert outcome(tmp_path / "budget") == outcome(straight)


@pytest.mark.parametrize("batch_size", [8, 800])
def test_short_runs_evaluate_rarely(tmp_path: Path, batch_size: int) -> None:
    """Train on at least as many samples between evaluations as validation has."""
    recipe = small()
    plan = plan_reproduction(
        recipe, tmp_path, ReproduceOptions(max_steps=35, batch_size=batch_size)
    )
    held_out = len(plan.task.split("validation"))
    expected = max(recipe.shortened(35).train.eval_every or 0, -(-held_out // batch_size))
    assert plan.recipe.train.eval_every == expected
    assert plan_reproduction(recipe, tmp_path).recipe.train.eval_every == 20


def test_a_finished_run_keeps_its_results(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that memory and command stay, because the next call trains nothing."""
    before = (finished / "results.json").read_bytes()
    monkeypatch.setattr(sys, "argv", ["another", "command"])
    assert run(finished) == json.loads(before)
    assert (finished / "results.json").read_bytes() == before


def test_lost_results_are_written_again(finished: Path) -> None:
    before = json.loads((finished / "results.json").read_text())
    (finished / "results.json").unlink()
    assert run(finished)["ours"] == before["ours"]
    assert (finished / "results.json").exists()


@pytest.mark.parametrize("damage", ["cut", "a digit"])
def test_damaged_results_are_written_again(damage: str, finished: Path, tmp_path: Path) -> None:
    """Check that damaged results are derived from the run again, without training."""
    out = shutil.copytree(finished, tmp_path / "out")
    path = out / "results.json"
    before = json.loads(path.read_text())
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    else:
        write_json(path, before | {"ours": 99.5})
    assert run(out)["ours"] == before["ours"]
    assert json.loads(path.read_text())["ours"] == before["ours"]


def test_status_of_the_run_is_reported(tmp_path: Path) -> None:
    told: list[Any] = []
    run(tmp_path / "run", on_status=told.append)
    assert told[-1].state == "done"
    assert told[-1].step == told[-1].max_steps == 8
    assert told[-1].score is not None


# Refusals.


def test_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"out: .*notes\.txt"):
        run(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 1}, "seed"),
        ({"max_steps": 4}, "train.max_steps"),
        ({"scale": 0.5}, "width|dim"),
        ({"batch_size": 4}, "train.batch_size"),
        ({"precision": "bf16"}, "train.precision"),
        ({"recipe": small(name="test/other", train=QUICK)}, "recipe"),
        ({"recipe": small(train=replace(QUICK, lr=0.5))}, "train.lr"),
    ],
    ids=["seed", "steps", "scale", "batch", "precision", "recipe", "rate"],
)
def test_another_configuration_is_refused(
    finished: Path, options: dict[str, Any], words: str
) -> None:
    before = (finished / "results.json").read_bytes()
    with pytest.raises(InputError, match=f"out: .*({words})"):
        run(finished, **options)
    assert (finished / "results.json").read_bytes() == before


def test_a_stopped_run_of_another_model_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(out, should_stop=stop_after(3))
    path = only_run(out) / "config.json"
    config = json.loads(path.read_text())
    config["model"]["hash"] = "0" * 16
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"model\.hash"):
        run(out)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_steps": 0}, r"max_steps: .*\b1\b"),
        ({"max_steps": 9}, r"max_steps: .*\b8\b.*test/digits"),
        ({"scale": 0}, r"scale: .*\b0\b"),
        ({"scale": 2}, r"scale: .*\b0\b"),
        ({"batch_size": 0}, r"batch_size: .*\b1\b"),
        ({"batch_size": 100_000}, "batch_size: .*got 100000"),
        ({"seed": -1}, "seed"),
        ({"num_workers": -1}, r"num_workers: .*\b0\b"),
        ({"precision": "fp8"}, r"precision: .*float32\b.*bf16\b"),
        ({"device": "tpu"}, "device"),
        ({"recipe": small(task_options={"patch_size": 3})}, "patch_size"),
        ({"recipe": small(model_settings={"mixer": "tssaa"})}, "tssa"),
        ({"recipe": small(model_settings={"dim": 15, "num_heads": 2})}, "dim"),
        ({"recipe": small(model="vit_cifar10", model_settings={})}, "recipe|: expected"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_invalid_runs_are_refused_before_training(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words) as raised:
        run(tmp_path / "run", **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_output_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out: .*/file"):
        run(tmp_path / "file")


def test_missing_data(tmp_path: Path) -> None:
    recipe = get_recipe("dimension_mixer/table4-cifar10-p4-l4-dense")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"task image: .*CIFAR-10.*--data-dir"):
        run(tmp_path / "run", recipe, data_dir=tmp_path / "empty")
    assert not (tmp_path / "run").exists()


def test_nan_loss_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(self: Task, outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return outputs.float().sum() * torch.nan

    monkeypatch.setattr(Task, "loss", loss)
    with pytest.raises(InputError, match="got NaN"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_diverged_run_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_reproduction(small(train=QUICK), tmp_path / "run")
    run_reproduction(plan, should_stop=stop_after(3))
    loss = Task.loss
    monkeypatch.setattr(Task, "loss", lambda self, o, b: loss(self, o, b) * torch.nan)
    with pytest.raises(TrainingDiverged, match="diverged"):
        run_reproduction(plan)
    monkeypatch.undo()
    assert run_reproduction(plan).status == "complete"
