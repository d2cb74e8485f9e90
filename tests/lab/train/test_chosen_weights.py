"""Tests of the weights that count: from the last update or the best evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toy_training import SETTINGS, ToySplit, ToyTask, make_config, make_model

from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.lab.train import TrainResult, train
from rifflemix.lab.train.run_folder import RunFolder


class Unvalidated(ToyTask):
    """Task without a validation split."""

    def split(self, name: str) -> ToySplit:
        if name != "validation":
            return super().split(name)
        return ToySplit(0, 2, self.padded, None)


def run(
    out: Path, task: ToyTask | None = None, model: nn.Module | None = None, **options: Any
) -> TrainResult:
    settings = options.pop("settings", {})
    return train(
        model or make_model(),
        task or ToyTask(),
        make_config(**settings),
        out,
        device="cpu",
        model_settings=SETTINGS,
        **options,
    )


def metrics_of(task: ToyTask, model: nn.Module) -> dict[str, float]:
    split = task.split("test")
    batch = task.collate([split[index] for index in range(len(split))])
    with torch.no_grad():
        metrics = task.metrics(model.eval()(batch["inputs"]), batch)
    return {name: value / count for name, (value, count) in metrics.items()}


@pytest.mark.parametrize("weights", ["best", "last"])
def test_last_and_best_weights_are_tested_and_one_counts(tmp_path: Path, weights: Any) -> None:
    task, model = ToyTask(), make_model()
    result = run(tmp_path, task, model, weights=weights, tests_both=True)
    assert result.best_step != result.step, "the test needs two different sets of weights"
    folder = RunFolder(tmp_path)
    for name, path in (("best", folder.best), ("last", folder.checkpoint)):
        tensors, _ = read_tensors(path)
        prefix = "" if name == "best" else "model/"
        own = {key: tensors[f"{prefix}{key}"] for key in model.state_dict()}
        twin = make_model()
        twin.load_state_dict(own)
        assert result.tests[name] == pytest.approx(metrics_of(task, twin))
        if name == weights:  # the model ends with the weights that count
            assert all(torch.equal(own[key], value) for key, value in model.state_dict().items())
    assert result.test == result.tests[weights]
    assert result.tests["best"] != result.tests["last"]
    assert result.protocol["test_evaluations"] == 2
    assert result.protocol["selected_by"] == {"best": "validation", "last": "last step"}[weights]
    again = run(tmp_path, task, twin := make_model(9), weights=weights, tests_both=True)
    assert again == result
    kept, _ = read_tensors(folder.chosen(weights))
    assert all(torch.equal(kept[key], value) for key, value in twin.state_dict().items())


def test_the_choice_does_not_change_the_training(tmp_path: Path) -> None:
    best, last = (run(tmp_path / w, weights=w, tests_both=True) for w in ("best", "last"))
    assert (best.validation, best.tests) == (last.validation, last.tests)
    alone = run(tmp_path / "alone", weights="last")
    assert alone.tests == {"last": last.tests["last"]}
    assert alone.test == last.test


def test_without_a_validation_split_the_last_weights_count(tmp_path: Path) -> None:
    result = run(tmp_path / "last", Unvalidated(), weights="last", tests_both=True)
    assert result.finished
    assert (result.validation, result.best_step, result.best_value) == ([], None, None)
    assert list(result.tests) == ["last"]
    assert result.test is not None
    assert TrainResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert not (tmp_path / "last/best.safetensors").exists()
    with pytest.raises(InputError, match="validation"):
        run(tmp_path / "best", Unvalidated())


def test_stopped_run_without_validation_resumes(tmp_path: Path) -> None:
    asked = iter([False] * 9)
    stopped = run(
        tmp_path / "a", Unvalidated(), weights="last", should_stop=lambda: next(asked, True)
    )
    assert not stopped.finished
    straight = run(tmp_path / "b", Unvalidated(), weights="last")
    again = run(tmp_path / "a", Unvalidated(), weights="last")
    assert again.test == straight.test
    files = [(tmp_path / name / "last.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


def test_changed_choice_of_weights_is_another_run(tmp_path: Path) -> None:
    run(tmp_path, settings={"max_steps": 2})
    with pytest.raises(InputError, match="weights"):
        run(tmp_path, weights="last", settings={"max_steps": 2})
    with pytest.raises(InputError, match="weights"):
        run(tmp_path / "other", weights="first")


def test_results_of_earlier_versions_are_read(tmp_path: Path) -> None:
    values = run(tmp_path, settings={"max_steps": 2}).to_dict()
    del values["tests"]
    assert TrainResult.from_dict(values).tests == {}
