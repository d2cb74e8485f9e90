"""Check that training uses training mode and evaluation restores all module modes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_training import ToyTask

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.train import TrainConfig, train


class Two(nn.Module):
    """Two linear layers, each with dropout."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(4, 8), nn.Dropout(p))
        self.second = nn.Sequential(nn.Dropout(p), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).mean(1))


def losses(folder: Path, model: nn.Module, **settings: Any) -> list[float]:
    config = TrainConfig(max_steps=6, batch_size=8, log_every=1, **settings)
    train(model, ToyTask(), config, folder)
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line and "lr" in line]


def test_a_model_in_evaluation_mode_is_trained_with_its_dropout(tmp_path: Path) -> None:
    """`from_pretrained` returns a model in evaluation mode."""
    expected = losses(tmp_path / "train", Two())
    assert losses(tmp_path / "eval", Two().eval()) == expected
    assert losses(tmp_path / "none", Two(p=0.0)) != expected


def test_evaluation_keeps_modules_in_evaluation_mode(tmp_path: Path) -> None:
    runs = []
    for every in (None, 2):
        model = Two()
        model.first.eval()
        runs.append(losses(tmp_path / str(every), model, eval_every=every))
        assert not model.first.training
        assert not model.first[1].training
    assert runs[0] == runs[1]
    assert losses(tmp_path / "whole", Two()) != runs[0]


@pytest.mark.parametrize("kind", ["gpt", "seq2seq"])
def test_generation_keeps_modules_in_evaluation_mode(kind: str) -> None:
    sizes = {"vocab_size": 9, "dim": 8, "num_layers": 2, "num_heads": 2, "max_length": 12}
    model = rm.create_model(kind, mixer="softmax", **sizes).train()
    frozen = next(module for module in model.modules() if isinstance(module, nn.LayerNorm))
    frozen.eval()
    tokens = torch.randint(1, 9, (2, 4))
    if kind == "gpt":
        model.generate(tokens, 3)
    else:
        model.decode(tokens, 3, start_token=1, end_token=2)
    assert model.training
    assert not frozen.training


@dataclass(frozen=True)
class WithoutALabel(ToyTask):
    """Task with NaN as every target."""

    def collate(self, samples: Any) -> dict[str, Tensor]:
        batch = super().collate(samples)
        return batch | {"labels": torch.full(batch["labels"].shape, torch.nan)}


def test_nan_target_is_reported(tmp_path: Path) -> None:
    words = r"^train data: .*got nan\b.*\d+$"
    with pytest.raises(InputError, match=words):
        train(Two(), WithoutALabel(), TrainConfig(max_steps=6, batch_size=8), tmp_path / "run")
