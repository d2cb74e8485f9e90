"""Check that two processes equal one, and that sharded state survives a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_training
from test_resume import outcome
from toy_training import SETTINGS, ToyTask, make_config, make_model, toy_task

from fsdp_on_cpu import shard_training
from processes import Processes, torchrun
from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.lab.train import train

pytestmark = pytest.mark.slow

QUIET = {"dropout": 0.0, "noise": 0.0, "has_unused": False}
FOLDER = Path(toy_training.__file__).parent


def launch(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(FOLDER / script), *map(str, arguments)]
    paths = [str(FOLDER.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def launch_training(
    out_dir: Path,
    settings: dict[str, Any],
    *more: object,
    script: str = "toy_training.py",
    task: dict[str, Any] | None = None,
    **model: Any,
) -> Any:
    config = json.dumps(make_config(**settings).to_dict())
    return launch(script, out_dir, config, json.dumps({"model": model, **(task or {})}), *more)


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    """Start once, because each torchrun start would import torch three times."""
    with Processes(2) as processes:
        yield processes


def train_here(
    out_dir: Path, settings: dict[str, Any], task: dict[str, Any], model: dict[str, Any], fsdp: bool
) -> dict[str, Any]:
    """Train as if torchrun had started this process only for it."""
    with torchrun() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        if fsdp:
            shard_training(patch)
        result = train(
            make_model(**model),
            toy_task(**task),
            make_config(**settings),
            out_dir,
            device="cpu",
            model_settings=SETTINGS,
        )
    return result.to_dict()


def checkpoint_tensors(out_dir: Path, prefix: str) -> dict[str, torch.Tensor]:
    tensors, _ = read_tensors(out_dir / "checkpoint.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@pytest.mark.parametrize(
    ("fsdp", "settings", "task"),
    [
        (False, {"batch_size": 64}, {}),
        (False, {"accumulation": 2}, {}),
        (False, {"accumulation": 2}, {"counts": True}),
        (True, {"accumulation": 2}, {}),
    ],
    ids=["ddp-over-epochs", "ddp-accumulation", "ddp-labels", "fsdp-accumulation"],
)
def test_two_processes_equal_one(
    two: Processes, tmp_path: Path, fsdp: bool, settings: dict[str, Any], task: dict[str, Any]
) -> None:
    settings = {"log_every": 1, **settings}
    result, _ = two.run(train_here, tmp_path / "two", settings, task, QUIET, fsdp)
    one = train(
        make_model(**QUIET),
        toy_task(**task),
        make_config(**settings),
        tmp_path / "one",
        device="cpu",
        model_settings=SETTINGS,
    )
    assert result["processes"] == 2
    assert (result["samples"], result["tokens"]) == (one.samples, one.tokens)
    assert result["best_step"] == one.best_step
    assert result["test"] == pytest.approx(one.test, rel=1e-4)
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("one", "two")]
    for line, twin in zip(*map(list, logs), strict=True):
        entry, other = json.loads(line), json.loads(twin)
        assert entry.pop("split", None) == other.pop("split", None)
        assert entry == pytest.approx(other, rel=1e-4, abs=1e-6)
    weights = [checkpoint_tensors(tmp_path / name, "model/") for name in ("one", "two")]
    assert weights[0]
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("script", ["toy_training.py", "fsdp_training.py"], ids=["ddp", "fsdp"])
def test_two_processes_resume_exactly(two: Processes, tmp_path: Path, script: str) -> None:
    """Resume in new processes, with all noise enabled and different in the two processes."""
    noisy = {"has_unused": False}
    rest: Any = ({}, {}, noisy, script == "fsdp_training.py")
    two.run(train_here, tmp_path / "straight", *rest)
    noisy_script = {"script": script, **noisy}
    killed = launch_training(tmp_path / "killed", {}, 14, **noisy_script)
    assert killed.returncode != 0
    assert (tmp_path / "killed" / "checkpoint.safetensors").exists(), killed.stderr
    assert not (tmp_path / "killed" / "training.json").exists()
    resumed = launch_training(tmp_path / "killed", {}, **noisy_script)
    assert resumed.returncode == 0, resumed.stderr
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "straight")
    again = two.run(train_here, tmp_path / "killed", *rest)
    assert [result["finished"] for result in again] == [True, True]
    rng = checkpoint_tensors(tmp_path / "killed", "rng/")["rng/torch"]
    assert not torch.equal(rng[0], rng[1])
    with pytest.raises(InputError, match="processes = 2, got 1"):
        train(
            make_model(has_unused=False),
            ToyTask(),
            make_config(),
            tmp_path / "killed",
            device="cpu",
            model_settings=SETTINGS,
        )


def test_error_of_the_main_process_ends_all_processes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = launch_training(tmp_path / "file" / "run", {})
    assert done.returncode != 0
    assert done.stderr.count("InputError: ") >= 2


def test_unsupported_fsdp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.accelerator.is_available():
        pytest.skip("an accelerator is here")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InputError, match=r"FSDP: .*processes"):
        train(make_model(), ToyTask(), make_config(), tmp_path / "run", device="cpu")
