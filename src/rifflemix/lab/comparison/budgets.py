"""How long to train on a task, and how, where the caller does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks import Budget, TaskCard, task_card
from rifflemix.lab.train.config import TrainConfig


def default_budget(task: str | TaskCard) -> Budget:
    """The budget that a task's card names."""
    return (task_card(task) if isinstance(task, str) else task).budget


NO_OPTIONS: Mapping[str, Any] = {}
_ELSEWHERE = ("max_steps", "batch_size", "lr", "precision", "seed")
"""Training settings that a comparison has under their own names."""


def train_config(
    budget: Budget,
    *,
    max_steps: int,
    batch_size: int,
    lr: float,
    precision: str,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> TrainConfig:
    """The training settings of a comparison: AdamW, a tenth of warm-up, then a cosine.

    Args:
        budget: of the task.
        max_steps: updates of each run.
        batch_size: sequences of an update.
        lr: peak learning rate.
        precision: "no" or "bf16".
        options: further settings, which win.

    Raises:
        InputError: an unknown setting, one of those before, or a value out of range.
    """
    for name in options:
        if name in _ELSEWHERE:
            expected = f"none of {', '.join(_ELSEWHERE)}"
            raise bad_argument("train_options", expected, name, "set it by its own name")
    settings = {
        "max_steps": max_steps,
        "batch_size": batch_size,
        "lr": lr,
        "weight_decay": 0.01,
        "schedule": "cosine",
        "warmup_steps": max_steps // 10,
        "clip_norm": 1.0,
        "precision": precision,
        "eval_every": max(1, -(-max_steps // budget.evaluations)),
        "checkpoint_seconds": 20.0,
        "log_every": max(1, max_steps // 100),
    }
    if options.get("clip_value") is not None:
        settings["clip_norm"] = None  # the usual clipping gives way: gradients are clipped one way
    return TrainConfig.from_dict({**settings, **options})
