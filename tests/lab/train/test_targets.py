"""Tests of smoothed labels and mixed samples in training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from toy_training import ToyTask

from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.tasks.images.pixels import WholeImages
from rifflemix.lab.train import TrainConfig, TrainEvent, seed_everything, train
from rifflemix.lab.train.targets import change_batch, check_targets, training_loss

SIDE, CLASSES = 8, 3


class Images:
    """Bright, dark and striped squares with noise."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, CLASSES, count)
        base = np.stack([np.ones((SIDE, SIDE)), -np.ones((SIDE, SIDE)), np.eye(SIDE)])
        noise = rng.normal(size=(count, 1, SIDE, SIDE))
        self.images = (base[self.labels][:, None] + 0.3 * noise).astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.images[index]), int(self.labels[index])

    def digest(self) -> bytes:
        return self.images.tobytes()[:64]


def image_task() -> WholeImages:
    splits = {name: Images(64, seed) for seed, name in enumerate(("train", "validation", "test"))}
    return WholeImages(
        name="squares", options={}, input_kind="images", vocab_size=None, num_features=None,
        num_classes=CLASSES, max_length=SIDE**2, padding=False, split_note="", data_source="",
        splits=splits, image_shape=(1, SIDE, SIDE), black=(-3.0,), white=(3.0,),
    )  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(SIDE**2, 16), nn.Linear(16, CLASSES)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.hidden(x.flatten(1)).relu()))


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"max_steps": 12, "batch_size": 16, "lr": 0.01, **settings})


MIXED = {"mixup": 0.8, "cutmix": 1.0, "label_smoothing": 0.1}


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_smoothed_class_loss_equals_torch(smoothing: float) -> None:
    task = image_task()
    batch = task.collate([task.split("train")[k] for k in range(9)])
    outputs = torch.randn(9, CLASSES, dtype=torch.float64)
    found = training_loss(task, outputs.float(), batch, smoothing)
    expected = functional.cross_entropy(outputs.float(), batch["labels"], label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    mixed = change_batch(task, config(mixup=0.4), batch, range(9))
    expected = functional.cross_entropy(outputs.float(), mixed["labels"], label_smoothing=smoothing)
    torch.testing.assert_close(training_loss(task, outputs.float(), mixed, smoothing), expected)


def sorting() -> Task:
    return load_task(
        "sort", num_train=8, num_validation=4, num_test=4, max_length=6, test_max_length=6
    )


@pytest.mark.parametrize("name", ["sort", "ptb"])
def test_smoothed_token_loss_equals_torch(name: str, tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"ptb.{part}.txt").write_text("the cat sat on the dog " * 9)
    words = {"level": "byte", "max_length": 20}
    task = sorting() if name == "sort" else load_task("ptb", data_dir=tmp_path, **words)
    batch = task.collate([task.split("train")[k] for k in range(5)])
    outputs = torch.randn(*batch["labels"].shape, task.num_classes)
    expected = functional.cross_entropy(
        outputs.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.2
    )
    torch.testing.assert_close(training_loss(task, outputs, batch, 0.2), expected)


def test_mixed_training_learns_and_resumes_exactly(tmp_path: Path) -> None:
    def run(out: Path, **options: Any) -> Any:
        seed_everything(0)
        return train(Net(), image_task(), config(**MIXED, max_steps=60), out, **options)

    whole = run(tmp_path / "whole", device="cpu")
    assert whole.test["accuracy"] > 0.9

    def stop_after(event: TrainEvent) -> None:
        stopped.append(event.step >= 7)

    stopped: list[bool] = []
    first = run(
        tmp_path / "parts", device="cpu", on_event=stop_after,
        should_stop=lambda: bool(stopped and stopped[-1]),
    )  # fmt: skip
    assert not first.finished
    assert run(tmp_path / "parts", device="cpu").validation == whole.validation
    weights = [
        read_tensors(tmp_path / name / "checkpoint.safetensors")[0] for name in ("whole", "parts")
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_mixing_depends_only_on_seed_and_position() -> None:
    task = image_task()
    batch = task.collate([task.split("train")[k] for k in range(6)])
    first = change_batch(task, config(**MIXED), batch, range(12, 18))
    again = change_batch(task, config(**MIXED), batch, range(12, 18))
    assert torch.equal(first["inputs"], again["inputs"])
    for other in (
        change_batch(task, config(**MIXED), batch, range(18, 24)),
        change_batch(task, config(**MIXED, seed=1), batch, range(12, 18)),
    ):
        assert not torch.equal(first["inputs"], other["inputs"])


class OwnLoss(WholeImages):
    """Task with a loss that does not support the inherited smoothing."""

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return outputs.square().mean()


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        (ToyTask(), {"label_smoothing": 0.1}, r"label_smoothing: .*\btoy, got 0\.1"),
        (ToyTask(), {"mixup": 0.8}, r"mixup: .*\btoy\b.*layout 'image'"),
        (sorting(), {"cutmix": 1.0}, r"cutmix: .*\bsort\b"),
        (
            OwnLoss(**{f.name: getattr(image_task(), f.name) for f in dataclasses.fields(Task)}),
            {"label_smoothing": 0.1},
            r"label_smoothing: .*\bsquares\b.*classes",
        ),
    ],
    ids=["loss of its own", "vectors", "tokens", "overridden loss"],
)
def test_invalid_targets_are_refused(
    task: Any, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        train(Net(), task, config(**settings), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    check_targets(task, config())
