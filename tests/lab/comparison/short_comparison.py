"""A comparison with a short training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_comparison import results_of_plan

from rifflemix.lab.comparison import (
    CompareConfig,
    default_budget,
    plan_comparison,
    train_config,
)


def settings(**changes: Any) -> CompareConfig:
    """Return settings for a short training."""
    train = train_config(
        default_budget("digits"), max_steps=6, batch_size=64, lr=1e-3, precision="no"
    )
    base = CompareConfig(
        task="digits",
        mixers=("softmax", "tssa"),
        seeds=(0,),
        dim=16,
        num_layers=1,
        num_heads=2,
        train=replace(train, eval_every=3),
        task_options={"patch_size": 4},
    )
    return replace(base, **changes)


def start(out: Path, **changes: Any) -> dict[str, Any]:
    return results_of_plan(plan_comparison(settings(**changes), out))
