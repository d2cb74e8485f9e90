"""How long to train on a task, and how, where the caller does not say."""

from __future__ import annotations

from rifflemix.tasks import Budget, TaskCard, task_card
from rifflemix.train.config import TrainConfig


def default_budget(task: str | TaskCard) -> Budget:
    """The budget that a task's card names."""
    return (task_card(task) if isinstance(task, str) else task).budget


def train_config(
    budget: Budget, *, max_steps: int, batch_size: int, lr: float, precision: str
) -> TrainConfig:
    """The training settings of a comparison: AdamW, a tenth of warm-up, then a cosine."""
    return TrainConfig(
        max_steps=max_steps,
        batch_size=batch_size,
        lr=lr,
        weight_decay=0.01,
        schedule="cosine",
        warmup_steps=max_steps // 10,
        clip_norm=1.0,
        precision=precision,
        eval_every=max(1, -(-max_steps // budget.evaluations)),
        checkpoint_seconds=20.0,
        log_every=max(1, max_steps // 100),
    )
