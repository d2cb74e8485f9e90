"""Check that `TrainConfig.compile` keeps all numbers and leaves the model unchanged."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest

from rifflemix.lab.tasks import load_task
from rifflemix.lab.train import TrainConfig, train
from rifflemix.lab.train.seeds import seed_everything
from rifflemix.models import create_model

# torch's own compiler calls functions that torch deprecates
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]


def test_compiled_training_makes_the_same_steps(tmp_path: Path) -> None:
    task = load_task("digits", patch_size=2)
    config = TrainConfig(max_steps=5, batch_size=8, log_every=1)
    losses = []
    for compiled in (False, True):
        seed_everything(0)
        model = create_model(
            "encoder", mixer="tssa", in_channels=task.num_features, max_length=16, dim=16
        )
        out = tmp_path / str(compiled)
        result = train(model, task, replace(config, compile=compiled), out, device="cpu")
        losses.append(result.train_loss)
        copy.deepcopy(model)  # the model has no reference to the compiler
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
