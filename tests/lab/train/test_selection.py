"""Tests of early stopping, class weights and the metric that selects weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from toy_training import ToyModel, ToyTask

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.train import TrainConfig, TrainResult, seed_everything, train
from rifflemix.lab.train.targets import class_weights, scores_splits, training_loss

STEPS = {"max_steps": 60, "batch_size": 10, "eval_every": 3, "lr": 0.05, "log_every": 4}


def trained(out: Path, task: Any = None, **settings: Any) -> TrainResult:
    seed_everything(0)
    return train(ToyModel(), task or ToyTask(), TrainConfig(**{**STEPS, **settings}), out)


@pytest.mark.parametrize("patience", [1, 3])
def test_training_stops_after_patience_evaluations_without_progress(
    tmp_path: Path, patience: int
) -> None:
    whole, stopped = trained(tmp_path / "whole"), trained(tmp_path / "stop", patience=patience)
    values = [at["accuracy"] for at in whole.validation]
    best, waited, length = -1.0, 0, 0
    for length, value in enumerate(values, start=1):  # noqa: B007
        best, waited = (value, 0) if value > best else (best, waited + 1)
        if waited == patience:
            break
    assert length < len(values)
    assert stopped.finished
    assert stopped.step == 3 * length
    assert stopped.validation == whole.validation[:length]
    assert stopped.best_value == max(values[:length])
    assert stopped.test is not None


def test_an_early_stop_survives_interruption_and_restart(tmp_path: Path) -> None:
    expected = trained(tmp_path / "whole", patience=2)
    settings, count = TrainConfig(**STEPS, patience=2), 0

    def stop() -> bool:
        nonlocal count
        count += 1
        return count % 5 == 0

    for _ in range(100):
        seed_everything(0)
        result = train(ToyModel(), ToyTask(), settings, tmp_path / "parts", should_stop=stop)
        if result.finished:
            break
    assert result.step == expected.step
    assert result.validation == expected.validation
    assert result.test == expected.test
    assert trained(tmp_path / "parts", patience=2).validation == expected.validation


def labelled(counts: list[int]) -> Task:
    """Make a task with `counts` training samples per class, and 9 samples in the other splits."""
    rest = np.arange(18) % len(counts)
    labels = np.concatenate([np.repeat(np.arange(len(counts)), counts), rest])
    x = np.random.default_rng(0).normal(size=(len(labels), 5, 3)).astype(np.float32)
    end = len(labels)
    split = {
        "train": range(end - 18),
        "validation": range(end - 18, end - 9),
        "test": range(end - 9, end),
    }
    return Task.from_arrays(x, labels, split=split)


def test_balanced_weights_equal_scikit_learn() -> None:
    task = labelled([10, 30, 20])
    found = class_weights(task, TrainConfig(class_weights="balanced"))
    torch.testing.assert_close(found, torch.tensor([60 / 30, 60 / 90, 60 / 60]))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_weighted_loss_is_torchs_over_the_number_of_samples(smoothing: float) -> None:
    task, weights = labelled([10, 30, 20]), torch.tensor([0.5, 2.0, 3.0])
    batch = task.collate([task.split("train")[k] for k in range(0, 60, 4)])
    outputs = torch.randn(15, 3)
    found = training_loss(task, outputs, batch, smoothing, weights)
    mean = functional.cross_entropy(
        outputs, batch["labels"], weights, label_smoothing=smoothing
    )  # divided by the sum of the weights
    torch.testing.assert_close(found, mean * weights[batch["labels"]].sum() / 15)


def test_accumulation_keeps_weighted_gradients(tmp_path: Path) -> None:
    task, losses = labelled([10, 30, 20]), []
    for parts in (1, 2):
        seed_everything(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(15, 3))
        settings = TrainConfig(
            max_steps=4, batch_size=12, lr=0.1, class_weights="balanced", accumulation=parts
        )
        losses.append(train(model, task, settings, tmp_path / str(parts)).train_loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.filterwarnings("ignore:task arrays:rifflemix.errors.InputWarning")
def test_weights_raise_the_recall_of_a_rare_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    labels = (rng.random(400) < 0.1).astype(int)
    x = (rng.normal(size=(400, 4, 2)) + 0.5 * labels[:, None, None]).astype(np.float32)
    task = Task.from_arrays(x, labels)
    rare = {}
    for name in (None, "balanced"):
        seed_everything(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 2))
        settings = TrainConfig(max_steps=80, batch_size=40, lr=0.05, class_weights=name)
        train(model, task, settings, tmp_path / str(name))
        found = model(torch.from_numpy(x)).argmax(1).numpy()
        rare[name] = found[labels == 1].mean()
    assert rare["balanced"] > rare[None] + 0.2


def test_other_metric_selects_other_weights(tmp_path: Path) -> None:
    task = labelled([10, 30, 20])
    results = {}
    for metric in ("accuracy", "loss"):
        seed_everything(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(15, 3))
        settings = TrainConfig(
            max_steps=40, batch_size=20, lr=0.3, eval_every=2, metric=metric, schedule="constant"
        )
        results[metric] = train(model, task, settings, tmp_path / metric)
    chosen = results["loss"]
    assert chosen.metric == "loss"
    assert chosen.best_value == min(at["loss"] for at in chosen.validation)
    assert chosen.protocol["higher_is_better"] is False
    assert chosen.best_step != results["accuracy"].best_step


TASKS: list[tuple[str, dict[str, Any]]] = [
    ("digits", {}),
    ("sort", {"num_train": 4, "num_validation": 4, "num_test": 4}),
]


@pytest.mark.parametrize(("name", "options"), TASKS)
def test_every_metric_has_a_direction(name: str, options: dict[str, Any]) -> None:
    task = load_task(name, **options)
    batch = task.collate([task.split("validation")[k] for k in range(4)])
    assert_directions(task, torch.randn(*batch["labels"].shape, task.num_classes), batch)


def test_every_metric_of_images_has_a_direction() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 8, 8)), np.arange(60) % 6
    task = Task.from_arrays(x, y, layout="image")
    batch = task.collate([task.split("train")[k] for k in range(8)])
    assert_directions(task, torch.randn(8, 6), batch)


def test_every_metric_of_numbers_has_a_direction() -> None:
    rng = np.random.default_rng(0)
    task = Task.from_arrays(rng.normal(size=(40, 5, 2)), rng.normal(size=40))
    batch = task.collate([task.split("train")[k] for k in range(8)])
    assert_directions(task, torch.randn(8, 1), batch)


def assert_directions(task: Task, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> None:
    means = {n: total / count for n, (total, count) in task.metrics(outputs, batch).items()}
    if scores_splits(task):
        means |= task.score_split(task.observe(outputs, batch).numpy())
    summarise = getattr(task, "summarise", lambda means: {})
    names = {*means, *summarise(means)}
    shown = {n for n in names if not n.startswith("_") and not n.endswith("_deviation")}
    # Scores of one class are computed only if `metric` names them.
    assert shown == {name for name in task.metric_directions if not name.startswith("f1:")}
    assert task.metric_directions[task.metric] is task.higher_is_better


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"patience": 0}, "patience"),
    ({"patience": 2, "eval_every": None}, "patience"),
    ({"metric": 3}, "metric"),
    ({"class_weights": "equal"}, "class_weights"),
    ({"class_weights": [1.0, -1.0]}, "class_weights"),
    ({"class_weights": []}, "class_weights"),
]


@pytest.mark.parametrize(("settings", "name"), REFUSED)
def test_bad_settings_are_refused(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=name):
        TrainConfig(**{**STEPS, **settings})


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"class_weights": [1.0, 2.0]}, "class_weights"),
        ({"metric": "f1"}, "f1"),
    ],
)
def test_settings_that_do_not_fit_the_task_are_refused(
    tmp_path: Path, settings: dict[str, Any], name: str
) -> None:
    with pytest.raises(InputError, match=name):
        train(torch.nn.Flatten(), labelled([10, 30, 20]), TrainConfig(**settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("settings", [{"class_weights": "balanced"}, {"metric": "loss"}])
def test_tasks_without_support_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        trained(tmp_path / "out", **settings)


def test_numbers_have_no_class_weights(tmp_path: Path) -> None:
    task = Task.from_arrays(np.random.default_rng(0).normal(size=(20, 3, 2)), np.arange(20.0))
    settings = TrainConfig(class_weights="balanced")
    with pytest.raises(InputError, match="class_weights"):
        train(torch.nn.Flatten(), task, settings, tmp_path / "out")
