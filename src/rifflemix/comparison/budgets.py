"""How long and how large to train on a task where the caller does not say."""

from __future__ import annotations

from dataclasses import dataclass

from rifflemix.train.config import TrainConfig


@dataclass(frozen=True)
class Budget:
    """Model size and training budget, the same for every mixer.

    Attributes:
        dim: channels C.
        num_layers: blocks.
        num_heads: heads H.
        max_steps: optimiser updates.
        batch_size: sequences per update.
        lr: peak learning rate.
        evaluations: how often to look at the validation split; the best look chooses the weights.
    """

    dim: int
    num_layers: int
    num_heads: int
    max_steps: int
    batch_size: int
    lr: float
    evaluations: int


# Chosen so that all six mixers end in minutes on two cores (digits) or within an hour or two (the
# others); none was tuned for a mixer.
_BUDGETS = {
    "digits": Budget(64, 2, 4, max_steps=400, batch_size=64, lr=5e-3, evaluations=8),
    "mnist": Budget(64, 2, 4, max_steps=1000, batch_size=64, lr=1e-3, evaluations=5),
    "image": Budget(64, 2, 4, max_steps=1000, batch_size=32, lr=1e-3, evaluations=2),
    "text": Budget(64, 2, 4, max_steps=1000, batch_size=16, lr=1e-3, evaluations=2),
    "listops": Budget(64, 2, 4, max_steps=1000, batch_size=16, lr=1e-3, evaluations=2),
    "ptb": Budget(128, 4, 4, max_steps=2000, batch_size=32, lr=2e-3, evaluations=5),
    "shakespeare": Budget(128, 4, 4, max_steps=1000, batch_size=16, lr=2e-3, evaluations=5),
    "wikitext": Budget(128, 4, 4, max_steps=2000, batch_size=16, lr=2e-3, evaluations=5),
    "sort": Budget(64, 2, 4, max_steps=1000, batch_size=16, lr=1e-3, evaluations=4),
}
_OTHER = Budget(64, 2, 4, max_steps=1000, batch_size=32, lr=1e-3, evaluations=5)


def default_budget(task: str) -> Budget:
    """The budget of a task; one of middling size for a task not in the table."""
    return _BUDGETS.get(task, _OTHER)


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
