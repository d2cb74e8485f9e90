"""Load a trained model from the folder of its training."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trained_runs import SIZES, train_into, vectors

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.json_values import sealed
from rifflemix.lab.comparison import plan_single, resolve, train_single
from rifflemix.lab.reproduction import plan_reproduction, run_reproduction
from rifflemix.lab.reproduction.sweep import plan_sweep, run_sweep
from rifflemix.lab.runs.build_for_task import fit_model
from rifflemix.lab.tasks import task_card
from rifflemix.lab.train import TrainConfig, train
from rifflemix.lab.trained import TrainedRun
from small_recipes import QUICK as QUICK_TRAINING
from small_recipes import small

QUICK: dict[str, Any] = {"max_steps": 4, "batch_size": 4, "threads": 1, **SIZES}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the runs of a comparison of two mixers with two seeds."""
    out = tmp_path_factory.mktemp("runs") / "two"
    task = rm.Task.from_arrays(*vectors())
    for mixer in ("csp", "tssa"):
        for seed in (0, 1):
            train_into(out / mixer / f"seed{seed}", task, mixer)
    (out / "config.json").write_text('{"task": "arrays", "model": "encoder"}')
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("one") / "run", rm.Task.from_arrays(*vectors()))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


@pytest.mark.slow
def test_the_best_run_by_validation_is_chosen(tmp_path: Path) -> None:
    task = rm.Task.from_arrays(*vectors())
    rm.compare(task, ["csp", "tssa"], seeds=2, out=tmp_path, **QUICK)
    results = json.loads((tmp_path / "results.json").read_text())["runs"]
    best = max(run["validation"]["accuracy"] for run in results)
    assert rm.load_run(tmp_path).metrics["validation"]["accuracy"] == best
    for run in results:
        named = rm.load_run(tmp_path, mixer=run["mixer"], seed=run["seed"])
        assert named.folder == tmp_path / run["folder"]


@pytest.mark.parametrize("mixer", ["csp", "tssa"])
def test_a_run_can_be_named(comparison: Path, mixer: str) -> None:
    for named in (
        rm.load_run(comparison, mixer=mixer, seed=1),
        rm.load_run(comparison / mixer / "seed1"),
    ):
        assert named.folder == comparison / mixer / "seed1"
        weights, _ = read_tensors(named.folder / "best.safetensors")
        state = named.model.state_dict()
        assert all(torch.equal(state[name], weights[name]) for name in weights)
        assert not named.model.training


def test_unknown_runs_are_refused(comparison: Path, run: Path, tmp_path: Path) -> None:
    for folder, named, match in (
        (comparison, {"mixer": "cps"}, "'cps'.*csp"),
        (comparison, {"seed": 7}, "'7'.*0, 1"),
        (comparison, {"seed": -1}, "seed: .*-1"),
        (comparison, {"mixer": 3}, "mixer: .*3"),
        (comparison.parent, {}, "folder: .*two"),
        (run, {"mixer": "tssa"}, "mixer: .*'tssa'"),
        (run, {"seed": 0}, "seed: .*0"),
        (tmp_path / "nowhere", {}, "folder: .*nowhere"),
        (comparison / "csp", {}, "folder: .*seed0, seed1"),
    ):
        with pytest.raises(InputError, match=match):
            rm.load_run(folder, **named)  # type: ignore[arg-type]


def test_a_run_is_shown_without_its_model(run: Path) -> None:
    assert repr(rm.load_run(run)) == f"TrainedRun(folder={str(run)!r}, task='arrays')"


def test_names_metrics_and_task(run: Path) -> None:
    loaded = rm.load_run(run)
    assert isinstance(loaded, TrainedRun)
    assert loaded.classes == ("high", "low")
    assert loaded.task.name == "arrays"
    assert {"accuracy", "loss"} <= loaded.metrics["test"].keys()
    assert loaded.metrics["validation"]["step"] == 2


@pytest.mark.parametrize(
    ("file", "damage", "match"),
    [
        ("training.json", None, "training.json"),
        ("best.safetensors", None, r"best\.safetensors.*restore"),
        ("best.safetensors", b"nothing", r"best\.safetensors"),
        ("task.json", b"{", r"task\.json"),
        ("task.json", b"[]", r"task\.json"),
        ("config.json", b"{}", "folder"),
        ("config.json", b"{", r"config\.json"),
    ],
)
def test_damaged_files_are_reported(run: Path, file: str, damage: bytes | None, match: str) -> None:
    path = run / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(InputError, match=match):
        rm.load_run(run)


@pytest.mark.parametrize("entry", ["classes", "num_classes", "inputs"])
def test_a_changed_record_is_reported(run: Path, entry: str) -> None:
    path = run / "task.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {entry: None}))
    with pytest.raises(InputError, match=r"task\.json"):
        rm.load_run(run)


VERSIONS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "renamed mixer option": ({"mixer_options": {"heat": 1.0}}, {}, "'heat'"),
    "unknown mixer": ({"mixer": "csp9"}, {}, "'csp9'"),
    "other weights": ({"dim": 32}, {}, r"best\.safetensors.*fit"),
    "field": ({}, {"crop": 1}, "'crop'"),
    "field of the inputs": ({}, {"inputs": {"kind": "sequences", "crop": 1}}, "'crop'"),
    "kind of inputs": ({}, {"inputs": {"kind": "videos"}}, "'videos'"),
    "format": ({}, {"format": "rifflemix.task/2"}, "rifflemix.task/2"),
}


@pytest.mark.parametrize("version", ["9.0", None])
@pytest.mark.parametrize(("settings", "record", "match"), VERSIONS.values(), ids=VERSIONS)
def test_runs_of_another_version_are_refused_in_one_sentence(
    run: Path, settings: dict[str, Any], record: dict[str, Any], match: str, version: str | None
) -> None:
    config = json.loads((run / "config.json").read_text())
    config["model"]["settings"] |= settings
    (run / "config.json").write_text(json.dumps(config))
    values = json.loads((run / "task.json").read_text()) | record | {"version": version}
    del values["sha256"]
    if version is None:
        del values["version"]
    (run / "task.json").write_text(json.dumps(sealed(values)))
    named = "rifflemix 9.0" if version else "older rifflemix"
    with pytest.raises(InputError, match=f"{named} wrote .*{match}") as caught:
        rm.load_run(run)
    assert "\n" not in str(caught.value)


def test_run_of_another_version_is_loaded_if_weights_fit(run: Path) -> None:
    values = json.loads((run / "task.json").read_text())
    del values["sha256"], values["version"], values["target_shape"]
    (run / "task.json").write_text(json.dumps(sealed(values)))
    assert rm.load_run(run).classes == ("high", "low")


def test_weights_of_another_model_are_reported(run: Path) -> None:
    path = run / "config.json"
    config = json.loads(path.read_text())
    config["model"]["settings"]["dim"] = 32
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"best\.safetensors"):
        rm.load_run(run)


def test_a_run_without_a_record_needs_its_data(tmp_path: Path) -> None:
    """Check runs of versions that wrote no task.json."""
    digits = rm.tasks.load_task("digits", patch_size=4, max_samples=20)
    run = train_into(tmp_path / "digits", digits)
    before = rm.load_run(run)
    (run / "task.json").unlink()
    after = rm.load_run(run)
    assert (after.task, after.inputs) == (before.task, before.inputs)
    own = train_into(tmp_path / "own", rm.Task.from_arrays(*vectors()))
    (own / "task.json").unlink()
    with pytest.raises(InputError, match=r"task\.json.*arrays"):
        rm.load_run(own)


SCRIPT = """
import json, sys
import numpy as np
import rifflemix as rm
run = rm.load_run(sys.argv[1])
inputs = json.loads(sys.argv[2])
print(json.dumps([run.classes, run.predict_proba(inputs).tolist()]))
"""


@pytest.mark.slow
def test_a_moved_run_needs_no_data(tmp_path: Path) -> None:
    """Check a new process, after the folder was moved and the data deleted."""
    data = tmp_path / "data.csv"
    rows = [f"text {i},{'ab'[i % 2]}" for i in range(40)]
    data.write_text("\n".join(["text,label", *rows]))
    task = rm.Task.from_csv(data, input="text", label="label")
    first = train_into(tmp_path / "run", task)
    expected = rm.load_run(first).predict_proba(["text 1", "a text"])
    shutil.move(first, tmp_path / "elsewhere")
    data.unlink()
    command = [sys.executable, "-c", SCRIPT, tmp_path / "elsewhere", '["text 1", "a text"]']
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    classes, found = json.loads(done.stdout)
    assert classes == ["a", "b"]
    assert np.array(found, dtype=np.float32).tolist() == expected.tolist()


@pytest.mark.slow
def test_a_run_of_train(tmp_path: Path) -> None:
    sizes = {"max_steps": 2, "batch_size": 8, "threads": 1, "device": "cpu", **SIZES}
    task = task_card("digits")
    config = resolve(task, {"tssa": "tssa"}, (3,), task_options={"patch_size": 4}, **sizes)
    train_single(plan_single(config, tmp_path / "out"))
    run = rm.load_run(tmp_path / "out")
    assert run.folder == tmp_path / "out" / "run"
    assert run.classes == tuple("0123456789")


@pytest.mark.slow
def test_a_tuned_comparison_has_its_chosen_runs(tmp_path: Path) -> None:
    task = rm.Task.from_arrays(*vectors())
    rm.compare(task, ["tssa"], lr=[1e-3, 1e-2], out=tmp_path, **QUICK)
    assert rm.load_run(tmp_path).folder == tmp_path / "tssa" / "seed0"


@pytest.mark.slow
def test_runs_of_reproduce_and_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rifflemix.lab.reproduction.run.matmul_flops_per_second", lambda *_: 1.0)
    recipe = small(train=QUICK_TRAINING)
    run_reproduction(plan_reproduction(recipe, tmp_path / "one"))
    run = rm.load_run(tmp_path / "one")
    assert (run.folder.name, run.task.name) == ("run", "digits")
    run_sweep(plan_sweep(recipe, {"lr": [1e-4, 1e-2]}, [0], tmp_path / "many"))
    points = [rm.load_run(tmp_path / "many", mixer=label) for label in ("lr=0.0001", "lr=0.01")]
    best = max(points, key=lambda run: run.metrics["validation"]["accuracy"])
    assert rm.load_run(tmp_path / "many").folder == best.folder
    with pytest.raises(InputError, match=r"lr=0\.1"):
        rm.load_run(tmp_path / "many", mixer="lr=0.1")


def test_the_chosen_weights_are_loaded(tmp_path: Path) -> None:
    """Check a run that selects the weights of the last update."""
    task = rm.Task.from_arrays(*vectors())
    settings = {"model": "encoder", "mixer": "tssa", "mixer_options": {}, **SIZES}
    model = fit_model("encoder", task, {"mixer": "tssa", **SIZES}, 0)
    config = TrainConfig(max_steps=4, batch_size=4, eval_every=2)
    train(model, task, config, tmp_path, device="cpu", model_settings=settings, weights="last")
    run = rm.load_run(tmp_path)
    assert run.metrics["validation"]["step"] == 4
    weights, _ = read_tensors(tmp_path / "last.safetensors")
    state = run.model.state_dict()
    assert all(torch.equal(state[name], weights[name]) for name in weights)
    (tmp_path / "last.safetensors").unlink()
    with pytest.raises(InputError, match=r"last\.safetensors"):
        rm.load_run(tmp_path)


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    run = train_into(tmp_path / "run", rm.Task.from_arrays(*vectors()))
    (run / "training.json").unlink()
    with pytest.raises(InputError, match=r"folder: .*training\.json.*continues"):
        rm.load_run(run)


def test_a_model_of_a_plugin_needs_the_plugin(run: Path) -> None:
    path = run / "config.json"
    config = json.loads(path.read_text())
    config["model"]["settings"]["model"] = "mine"
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"mine.*--plugin"):
        rm.load_run(run)
