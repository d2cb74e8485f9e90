"""A small learnable task and model for the training tests; also run as a script by them.

    python toy_training.py OUT_DIR CONFIG_JSON TASK_JSON [KILL_AT]

trains and prints the result as JSON. KILL_AT ends the process as `kill -9` does, at an update.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.lab.train import TrainConfig, TrainEvent, seed_everything, train

SETTINGS = {"width": 16}


class ToySplit:
    """Vectors (length, 4) labeled by a hidden linear rule for their mean."""

    def __init__(self, samples: int, seed: int, padded: bool, spoiled: int | None) -> None:
        rng = np.random.default_rng(seed)
        self.inputs = rng.normal(size=(samples, 6, 4)).astype(np.float32)
        self.labels = (self.inputs.mean(1) @ np.array([1.0, -2.0, 0.5, 1.5]) > 0).astype(np.int64)
        self.sizes = rng.integers(3, 7, samples) if padded else np.full(samples, 6)
        if spoiled is not None:
            self.inputs[spoiled, 2, 1] = np.nan

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.inputs[index, : self.sizes[index]], int(self.labels[index])


@dataclass(frozen=True)
class ToyTask:
    samples: int = 50
    padded: bool = False
    spoiled: int | None = None
    explode_at: int | None = None
    name: str = "toy"
    metric: str = "accuracy"
    higher_is_better: bool = True
    split_note: str = "made with its own seed"

    @property
    def options(self) -> Mapping[str, Any]:
        return {"samples": self.samples, "padded": self.padded}

    def split(self, name: str) -> ToySplit:
        seed = {"train": 1, "validation": 2, "test": 3}[name]
        spoiled = self.spoiled if name == "train" else None
        return ToySplit(self.samples if name == "train" else 21, seed, self.padded, spoiled)

    def collate(self, samples: Sequence[tuple[np.ndarray, int]]) -> dict[str, Tensor]:
        longest = max(len(values) for values, _ in samples)
        inputs = torch.zeros(len(samples), longest, 4)
        mask = torch.ones(len(samples), longest, dtype=torch.bool)
        for row, (values, _) in enumerate(samples):
            inputs[row, : len(values)] = torch.from_numpy(values)
            mask[row, : len(values)] = False
        batch = {"inputs": inputs, "labels": torch.tensor([label for _, label in samples])}
        return batch | ({"key_padding_mask": mask} if self.padded else {})

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return functional.cross_entropy(outputs.float(), batch["labels"])

    def metrics(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        labels = batch["labels"]
        summed = functional.cross_entropy(outputs.float(), labels, reduction="sum")
        right = float((outputs.argmax(-1) == labels).sum())
        return {"accuracy": (right, len(labels)), "loss": (float(summed), len(labels))}

    def fingerprint(self) -> str:
        return f"toy-{self.samples}-{self.padded}"


class ToyCountingTask(ToyTask):
    """Task with four labels per sample of class 1 and one label per other sample."""

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        counts = 1 + 3 * batch["labels"]
        each = functional.cross_entropy(outputs.float(), batch["labels"], reduction="none")
        return (each * counts).sum() / counts.sum()

    def count_labels(self, batch: Mapping[str, Tensor]) -> int:
        return int((1 + 3 * batch["labels"]).sum())


class ToyModel(nn.Module):
    """Model that uses noise from torch (dropout), numpy and Python."""

    def __init__(self, dropout: float = 0.2, noise: float = 0.01, has_unused: bool = True) -> None:
        super().__init__()
        self.embed = nn.Linear(4, SETTINGS["width"])
        self.norm = nn.LayerNorm(SETTINGS["width"])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(SETTINGS["width"], 2)
        if has_unused:
            self.unused = nn.Parameter(torch.ones(2, 2))
        self.noise = noise

    def no_weight_decay(self) -> set[str]:
        return {"embed.weight"}

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        x = torch.tanh(self.norm(self.embed(x)))
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        if self.training:
            x = x * (1 + self.noise * (np.random.normal() + random.gauss(0, 1)))  # noqa: NPY002
        return self.head(self.dropout(x.mean(1)))


def make_model(seed: int = 0, **options: Any) -> ToyModel:
    seed_everything(seed)
    return ToyModel(**options)


def make_config(**settings: Any) -> TrainConfig:
    plain: dict[str, Any] = {
        "max_steps": 23,
        "batch_size": 8,
        "lr": 0.01,
        "weight_decay": 0.1,
        "schedule": "linear",
        "warmup_steps": 3,
        "eval_every": 5,
        "checkpoint_every": 4,
        "log_every": 3,
        "clip_norm": 1.0,
    }
    return TrainConfig(**(plain | settings))


def toy_task(*, counts: bool = False, **options: Any) -> ToyTask:
    return (ToyCountingTask if counts else ToyTask)(**options)


def _killer(at: int) -> Any:
    def on_event(event: TrainEvent) -> None:
        if event.kind == "step" and event.step == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_event


def main(out_dir: str, config: str, task: str, kill_at: str = "-1") -> None:
    options = json.loads(task)
    model_options = options.pop("model", {})
    result = train(
        make_model(**model_options),
        toy_task(**options),
        TrainConfig.from_dict(json.loads(config)),
        out_dir,
        device="cpu",
        on_event=_killer(int(kill_at)),
        model_settings=SETTINGS,
    )
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(result.to_dict()))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
