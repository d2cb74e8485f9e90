"""Check that refusals of the training loop are one sentence and keep the last good state."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import Scripted, run
from torch import Tensor
from toy_training import ToyTask, make_config, make_model

from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.lab.train import TrainConfig, TrainEvent, TrainingDiverged, train
from rifflemix.locks import locked


def refused(out_dir: Path, error: type[InputError] = InputError, **options: Any) -> str:
    with pytest.raises(error) as caught:
        run(out_dir, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.02}, ["config.lr", "0.01", "0.02"]),
        ({"max_steps": 24}, ["config.max_steps", "23", "24"]),
        ({"seed": 1}, ["config.seed"]),
        ({"task": ToyTask(samples=60)}, ["task.options.samples", "50", "60"]),
        ({"model": make_model(dropout=0.5)}, ["model.hash"]),
    ],
    ids=["lr", "max_steps", "seed", "task", "model"],
)
def test_folder_of_another_run(tmp_path: Path, settings: dict[str, Any], words: list[str]) -> None:
    run(tmp_path, max_steps=23)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    message = refused(tmp_path, **settings)
    for word in [*words, str(tmp_path)]:
        assert word in message
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_model_settings_are_compared(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(InputError, match=r"model.settings.width = 16, got 17"):
        train(
            make_model(),
            ToyTask(),
            make_config(),
            tmp_path,
            device="cpu",
            model_settings={"width": 17},
        )


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_text("mine")
    assert "config.json" in refused(tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_text() == "mine"


def test_folder_in_use(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert str(tmp_path) in refused(tmp_path)


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(tmp_path / "file" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "config.json", "log.jsonl"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    run(tmp_path)
    (tmp_path / "training.json").unlink()
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:30])
    message = refused(tmp_path)
    assert name in message
    assert "damaged" in message


def test_damaged_result(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "training.json").write_text('{"finished": true}')
    assert "step" in refused(tmp_path)


def test_nan_in_the_data_names_the_sample(tmp_path: Path) -> None:
    message = refused(tmp_path, task=ToyTask(spoiled=37))
    assert re.fullmatch(r"train data: .*got nan\b.*\b37", message)


class Exploding(ToyTask):
    """Task with an infinite loss at the given update."""

    def __init__(self, at: int) -> None:
        super().__init__()
        object.__setattr__(self, "countdown", [at])

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        self.countdown[0] -= 1  # type: ignore[attr-defined]
        loss = super().loss(outputs, batch)
        return loss * math.inf if self.countdown[0] == 0 else loss  # type: ignore[attr-defined]


def test_divergence_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    message = refused(tmp_path, TrainingDiverged, task=Exploding(10), log_every=100)
    assert re.search(r"diverged.*\binf\b.*\b10\b.*\blr \(0\.01\).*\bstep 8\b", message)
    _, progress = read_tensors(tmp_path / "checkpoint.safetensors")
    assert progress["step"] == 8
    assert run(tmp_path, log_every=100).finished


def test_divergence_reason_contains_no_paths(
    tmp_path: Path,
) -> None:
    def reason(folder: str, **settings: Any) -> str:
        with pytest.raises(TrainingDiverged) as found:
            run(tmp_path / folder, task=Exploding(10), log_every=100, **settings)
        return found.value.reason

    assert reason("one", checkpoint_every=4) == reason("other", checkpoint_every=3)


def test_divergence_before_the_first_checkpoint_names_no_checkpoint(tmp_path: Path) -> None:
    message = refused(tmp_path, TrainingDiverged, task=Exploding(1), log_every=100)
    assert re.search(r"\binf\b.*\b1\b", message)
    assert "checkpoint" not in message


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    """Break the weights in the update at a checkpoint, before any loss shows it."""
    model = make_model()
    model.unused.register_hook(lambda grad: grad)

    def spoil(event: TrainEvent) -> None:
        if event.kind == "step" and event.step == 8:
            with torch.no_grad():
                model.unused.fill_(math.nan)

    with pytest.raises(TrainingDiverged, match=r"parameter unused .*step 8"):
        train(model, ToyTask(), make_config(), tmp_path, device="cpu", on_event=spoil)
    _, progress = read_tensors(tmp_path / "checkpoint.safetensors")
    assert progress["step"] == 4


def test_metric_that_is_not_finite(tmp_path: Path) -> None:
    message = refused(tmp_path, TrainingDiverged, task=Scripted([math.nan] * 9, True))
    assert re.search(r"\bscore\b.*\bvalidation\b.*\bnan\b", message)


def test_task_without_its_metric(tmp_path: Path) -> None:
    assert "'f1'" in refused(tmp_path, task=replace(ToyTask(), metric="f1"))


def test_empty_split(tmp_path: Path) -> None:
    assert "'train'" in refused(tmp_path / "run", task=ToyTask(samples=0))
    assert not (tmp_path / "run").exists()


def test_nothing_to_train(tmp_path: Path) -> None:
    model = make_model().requires_grad_(False)
    assert "model: " in refused(tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()


def test_batch_that_does_not_divide(tmp_path: Path) -> None:
    message = refused(tmp_path / "run", accumulation=3)
    assert re.search("batch_size: .*accumulation x processes = 3 x 1, got 8", message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "tpu", 7])
def test_unavailable_device_is_refused(tmp_path: Path, device: Any) -> None:
    if torch.accelerator.is_available():
        pytest.skip("an accelerator is here")
    with pytest.raises(InputError, match="device"):
        train(make_model(), ToyTask(), TrainConfig(), tmp_path / "run", device=device)
    assert not (tmp_path / "run").exists()


def test_without_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    message = refused(tmp_path / "run")
    assert re.search(r"accelerate.*'rifflemix\[compare\]'", message)
    assert not (tmp_path / "run").exists()


def test_settings_that_are_not_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="JSON"):
        train(
            make_model(),
            ToyTask(),
            make_config(),
            tmp_path,
            device="cpu",
            model_settings={"width": object()},
        )


def test_full_disk_at_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rifflemix import files

    replace_file, saves = files.os.replace, []

    def fail_second_checkpoint(source: Path, target: Path) -> None:
        saves.append(target.name)
        if saves.count("checkpoint.safetensors") == 2:
            raise OSError(28, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(files.os, "replace", fail_second_checkpoint)
    message = refused(tmp_path)
    assert "No space left on device" in message
    _, progress = read_tensors(tmp_path / "checkpoint.safetensors")
    assert progress["step"] == 4
    assert not list(tmp_path.glob("*.tmp"))
    monkeypatch.undo()
    assert run(tmp_path).finished


def test_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    message = refused(tmp_path)
    assert "notes.txt" in message
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_lock_path_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    assert ".lock" in refused(tmp_path)


def test_log_deleted_before_a_checkpoint(tmp_path: Path) -> None:
    def remove(event: TrainEvent) -> None:
        if event.step == 3:
            (tmp_path / "log.jsonl").unlink(missing_ok=True)

    with pytest.raises(InputError, match=r"log\.jsonl: No such file"):
        train(make_model(), ToyTask(), make_config(), tmp_path, device="cpu", on_event=remove)
