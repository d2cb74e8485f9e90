"""Small trainings for tests that load models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rifflemix as rm
from rifflemix.lab.runs.build_for_task import fit_model
from rifflemix.lab.train import TrainConfig, train

SIZES: dict[str, Any] = {"dim": 16, "num_layers": 1, "num_heads": 2}


def train_into(
    out: Path, task: Any, mixer: str = "tssa", model: str = "encoder", **settings: Any
) -> Path:
    """Train a small model for two steps; return the folder of the run."""
    own = {"mixer": mixer, "mixer_options": {}, **SIZES}
    built = fit_model(model, task, {**own, **settings}, seed=0)
    config = TrainConfig(max_steps=2, batch_size=4, eval_every=2, log_every=1)
    # The settings of the model in the form of a run of `compare`, or of `reproduce`.
    stored = {"model": model, **own}
    if settings or model != "encoder":
        stored["model_settings"] = {**own, **settings}
    train(built, task, config, out, device="cpu", model_settings=stored)
    return out


def vectors(count: int = 40) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(count, 6, 2)).astype(np.float32)
    return x, np.where(x.mean(axis=(1, 2)) > 0, "high", "low")


def ragged(count: int = 40) -> tuple[Sequence[Any], Any]:
    random = np.random.default_rng(1)
    x = [random.integers(0, 9, size=random.integers(2, 12)) for _ in range(count)]
    return x, [float(row.sum()) for row in x]


def texts(count: int = 40) -> tuple[list[str], list[str]]:
    words = ("good", "bad", "fine film", "dull")
    x = [f"{words[i % 4]} {i}" for i in range(count)]
    return x, ["yes" if i % 2 == 0 else "no" for i in range(count)]


def images(count: int = 40) -> tuple[Any, Any]:
    x = np.random.default_rng(2).integers(0, 256, size=(count, 8, 8, 3)).astype(np.uint8)
    return x, np.arange(count) % 3


def tasks() -> dict[str, tuple[rm.Task, Any]]:
    """Return a task of each kind of user data, and its raw inputs."""
    made = {"vectors": vectors(), "ragged": ragged(), "texts": texts(), "images": images()}
    return {name: (rm.Task.from_arrays(x, y), x) for name, (x, y) in made.items()}
