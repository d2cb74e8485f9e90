"""Check that a killed and resumed run equals an uninterrupted run bit for bit on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_training
from torch import nn
from toy_training import SETTINGS, ToyTask, make_config, make_model

from rifflemix.files import read_tensors
from rifflemix.lab.train import TrainConfig, TrainEvent, TrainResult, train
from rifflemix.lab.train.run_folder import RunFolder

LAST = 23


class Killed(BaseException):
    """Ends a run without a chance to save, like a kill signal."""


def kill_at(step: int, kind: str = "step") -> Any:
    def on_event(event: TrainEvent) -> None:
        if event.kind == kind and event.step >= step:
            raise Killed

    return on_event


def run(
    out_dir: Path, config: TrainConfig, task: ToyTask | None = None, **options: Any
) -> TrainResult:
    return train(
        make_model(),
        task or ToyTask(),
        config,
        out_dir,
        device="cpu",
        model_settings=SETTINGS,
        **options,
    )


def outcome(out_dir: Path) -> dict[str, Any]:
    """Return everything that a run leaves, except wall times."""
    tensors, progress = read_tensors(out_dir / "checkpoint.safetensors")
    result = json.loads((out_dir / "training.json").read_text())
    for name in ("seconds", "steps_per_second", "tokens_per_second", "sha256"):
        del result[name]
    for name in ("seconds", "timed_steps", "timed_tokens", "timed_seconds"):
        del progress[name]
    return {
        "log": (out_dir / "log.jsonl").read_bytes(),
        "best": (out_dir / "best.safetensors").read_bytes(),
        "checkpoint": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "progress": progress,
        "result": result,
    }


Straight = Callable[[TrainConfig], dict[str, Any]]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Train each configuration once without a stop and return its outcome."""
    known: dict[str, dict[str, Any]] = {}

    def outcome_of(config: TrainConfig) -> dict[str, Any]:
        key = json.dumps(config.to_dict())
        if key not in known:
            out_dir = tmp_path_factory.mktemp("straight")
            run(out_dir, config)
            known[key] = outcome(out_dir)
        return known[key]

    return outcome_of


SETTINGS_TABLE: dict[str, dict[str, Any]] = {
    "plain": {},
    "coupled-adam": {"optimizer": "adam", "schedule": "cosine", "clip_norm": None},
    "sgd": {"optimizer": "sgd", "schedule": "cosine", "weight_decay": 5e-4},
    "adafactor": {"optimizer": "adafactor", "schedule": "rsqrt_decay", "lr": 0.05},
    "accumulation": {"accumulation": 4},
    "bf16": {"precision": "bf16"},
    "odd-cadences": {"eval_every": 7, "checkpoint_every": 6, "log_every": 4},
    "epoch-in-a-batch": {"batch_size": 64},
    "every-step": {"checkpoint_every": 1, "eval_every": 1, "log_every": 1},
}


SLOW = {
    "coupled-adam",
    "sgd",
    "odd-cadences",
    "bf16",
    "epoch-in-a-batch",
    "every-step",
    "adafactor",
}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, settings in SETTINGS_TABLE.items()
    ],
)
def test_run_killed_twice_equals_an_uninterrupted_run(
    tmp_path: Path, settings: dict[str, Any], straight: Straight
) -> None:
    config = make_config(**settings)
    for step in (9, 17):
        with pytest.raises(Killed):
            run(tmp_path / "killed", config, on_event=kill_at(step))
    run(tmp_path / "killed", config)
    assert outcome(tmp_path / "killed") == straight(config)


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, LAST + 1))
def test_run_killed_at_any_step_resumes(tmp_path: Path, step: int, straight: Straight) -> None:
    with pytest.raises(Killed):
        run(tmp_path / "killed", make_config(), on_event=kill_at(step))
    run(tmp_path / "killed", make_config())
    assert outcome(tmp_path / "killed") == straight(make_config())


@pytest.mark.parametrize(("kind", "step"), [("eval", 5), ("eval", LAST), ("checkpoint", LAST)])
def test_run_killed_around_evaluation_resumes(
    tmp_path: Path, kind: str, step: int, straight: Straight
) -> None:
    with pytest.raises(Killed):
        run(tmp_path / "killed", make_config(), on_event=kill_at(step, kind))
    run(tmp_path / "killed", make_config())
    assert outcome(tmp_path / "killed") == straight(make_config())


@pytest.mark.slow
def test_run_stopped_at_every_step_equals_an_uninterrupted_run(
    tmp_path: Path, straight: Straight
) -> None:
    """Stop between all other events, so that partial losses and history must be restored.

    At step 5 the stop comes in the middle of an evaluation.
    """
    config = make_config(max_steps=7, checkpoint_every=None)
    for step in range(1, 8):
        steps: list[int] = []
        result = run(
            tmp_path / "stopped",
            config,
            on_event=lambda event: steps.append(event.step) if event.kind == "step" else None,  # noqa: B023
            should_stop=lambda: bool(steps),  # noqa: B023
        )
        assert (result.finished, result.step, steps) == (False, step, [step])
    run(tmp_path / "stopped", config)
    assert outcome(tmp_path / "stopped") == straight(config)


def test_stop_before_the_first_update(tmp_path: Path, straight: Straight) -> None:
    result = run(tmp_path / "stopped", make_config(), should_stop=lambda: True)
    assert (result.finished, result.step, result.test) == (False, 0, None)
    run(tmp_path / "stopped", make_config())
    assert outcome(tmp_path / "stopped") == straight(make_config())


def test_stop_during_the_final_test_keeps_it_single(tmp_path: Path) -> None:
    events: list[TrainEvent] = []
    stopped = run(
        tmp_path,
        make_config(eval_every=None),
        on_event=events.append,
        should_stop=lambda: any(event.kind == "eval" for event in events),
    )
    assert (stopped.finished, stopped.step, stopped.protocol["test_evaluations"]) == (
        False,
        LAST,
        0,
    )
    assert run(tmp_path, make_config(eval_every=None)).protocol["test_evaluations"] == 1


def test_finished_run_is_returned_without_training(tmp_path: Path) -> None:
    first = run(tmp_path, make_config())
    events: list[TrainEvent] = []
    model = make_model()
    again = train(
        model,
        ToyTask(),
        make_config(),
        tmp_path,
        device="cpu",
        on_event=events.append,
        model_settings=SETTINGS,
    )
    assert again == first
    assert events == []
    best, meta = read_tensors(tmp_path / "best.safetensors")
    assert meta == {"step": first.best_step, "accuracy": first.best_value}
    assert all(torch.equal(tensor, best[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "num_workers", [0, pytest.param(2, marks=pytest.mark.slow)], ids="{} workers".format
)
def test_settings_without_effect_may_change_on_resume(
    tmp_path: Path, num_workers: int, straight: Straight
) -> None:
    with pytest.raises(Killed):
        run(tmp_path / "killed", make_config(num_workers=2), on_event=kill_at(10))
    changed = {"checkpoint_every": 3, "checkpoint_seconds": 9.0, "num_workers": num_workers}
    run(tmp_path / "killed", make_config(**changed))
    assert outcome(tmp_path / "killed") == straight(make_config())


def test_keeping_weights_does_not_change_results(tmp_path: Path, straight: Straight) -> None:
    config = make_config()
    with pytest.raises(Killed):
        run(tmp_path / "kept", config, on_event=kill_at(10), keep_weights=True)
    run(tmp_path / "kept", config, keep_weights=True)
    assert outcome(tmp_path / "kept") == straight(config)
    kept = RunFolder(tmp_path / "kept").kept_weights()
    result = json.loads((tmp_path / "kept" / "training.json").read_text())
    assert list(kept) == [0, *(entry["step"] for entry in result["validation"])]
    at_first, at_best = (read_tensors(kept[step])[0] for step in (0, result["best_step"]))
    best = read_tensors(tmp_path / "kept" / "best.safetensors")[0]
    for found, expected in ((at_first, make_model().state_dict()), (at_best, best)):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


class Odd(nn.Module):
    """Model with tied, frozen and infinite tensors, statistics, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.first = nn.Linear(8, 8, bias=False)
        self.twin = nn.Linear(8, 8, bias=False)
        self.twin.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.full((8,), 0.5), requires_grad=False)
        self.register_buffer("mask", torch.full((8,), -torch.inf))
        self.register_buffer("passing", torch.zeros(8), persistent=False)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twin(torch.tanh(self.first(self.embed(x)))) * self.scale
        return self.head(self.norm(x.mean(1)) + self.mask.exp() + self.passing)


def make_compiled() -> Any:
    return torch.compile(Odd(), backend="eager")


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(Odd, id="odd"),
        pytest.param(make_compiled, id="compiled", marks=pytest.mark.slow),
    ],
)
def test_other_models_resume_exactly(tmp_path: Path, build: Any) -> None:
    def run_built(name: str, **options: Any) -> Any:
        torch.manual_seed(0)
        model = build()
        train(model, ToyTask(), make_config(), tmp_path / name, device="cpu", **options)
        return model

    run_built("straight")
    with pytest.raises(Killed):
        run_built("killed", on_event=kill_at(9))
    model = run_built("killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "straight")
    returned = run_built("killed")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, returned.state_dict()[name]), name


def run_script(out_dir: Path, config: TrainConfig, kill_step: int = -1) -> int:
    script = Path(toy_training.__file__)
    arguments = [out_dir, json.dumps(config.to_dict()), "{}", kill_step]
    command = [sys.executable, "-W", "error", str(script), *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ.copy(), check=False, capture_output=True
    ).returncode


@pytest.mark.slow
def test_run_killed_by_sigkill_resumes(tmp_path: Path, straight: Straight) -> None:
    assert run_script(tmp_path / "killed", make_config(), kill_step=14) == -9
    assert not (tmp_path / "killed" / "training.json").exists()
    run(tmp_path / "killed", make_config())
    assert outcome(tmp_path / "killed") == straight(make_config())


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "seconds"), [(0, 3.0), (0, 4.5), (0, 6.0), (2, 5.0)])
def test_run_killed_by_sigkill_at_any_moment_resumes(
    tmp_path: Path, seconds: float, workers: int, straight: Straight
) -> None:
    """Kill at random moments: during startup, an update, a save or an evaluation."""
    steps = 100 if workers else 400  # each evaluation starts its workers
    config = make_config(max_steps=steps, checkpoint_every=2, num_workers=workers)
    script = Path(toy_training.__file__)
    command = [sys.executable, str(script), str(tmp_path / "killed")]
    command += [json.dumps(config.to_dict()), "{}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    run(tmp_path / "killed", config)
    assert outcome(tmp_path / "killed") == straight(config)
