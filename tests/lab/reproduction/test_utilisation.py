"""Tests of model FLOP utilization: the FLOPs of a real training step of all processes."""

from __future__ import annotations

import pytest
import torch

from rifflemix.lab.reproduction.run import Utilisation, utilisation
from rifflemix.lab.tasks import Task
from rifflemix.lab.train import TrainConfig
from rifflemix.models import create_model

pytestmark = pytest.mark.usefixtures("no_matmul_timing")
TOKENS = 64


def task(lengths: list[int]) -> Task:
    """Build a task with training samples of the given lengths."""
    count = len(lengths)
    ids = 1 + torch.stack([torch.arange(TOKENS) * (row + 1) % 50 for row in range(count + 4)])
    labels = [index % 2 for index in range(count + 4)]
    split = {
        "train": list(range(count)),
        "validation": [count, count + 1],
        "test": [count + 2, count + 3],
    }
    return Task.from_arrays(ids, labels, lengths=[*lengths, *[TOKENS] * 4], split=split)


def measured(lengths: list[int], mixer: str = "tssa", **settings: int) -> Utilisation:
    """Measure a small encoder that makes ten steps per second."""
    config = TrainConfig(max_steps=1, batch_size=len(lengths), **settings)
    data = task(lengths)
    sizes = {"vocab_size": data.vocab_size, "num_classes": 2, "max_length": TOKENS}
    model = create_model("encoder", mixer=mixer, dim=8, num_layers=1, num_heads=2, **sizes)
    return utilisation(model, data, config, 10.0, torch.device("cpu"))


def test_all_samples_of_a_batch_are_as_long_as_its_longest() -> None:
    short_first = measured([8, 8, 8, 8, 8, 8, 8, TOKENS])
    assert short_first.flops_per_step == measured([TOKENS] * 8).flops_per_step


def test_each_accumulated_batch_has_its_longest_sample() -> None:
    lengths = [TOKENS] * 8
    assert measured(lengths, accumulation=4) == measured(lengths)


def test_each_process_has_the_speed_of_a_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = measured([TOKENS] * 8)
    monkeypatch.setenv("WORLD_SIZE", "4")
    together = measured([TOKENS] * 8)
    assert together.flops_per_step == alone.flops_per_step
    assert together.share == pytest.approx(alone.share / 4)
