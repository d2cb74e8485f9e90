"""From what a user chooses to a checked configuration: of the command and of `rm.compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rifflemix.comparison.budgets import default_budget, train_config
from rifflemix.comparison.config import CompareConfig, default_model
from rifflemix.errors import check_choice
from rifflemix.mixers import mixer_card
from rifflemix.runs.device import resolve_device
from rifflemix.runs.options import PRECISIONS
from rifflemix.tasks import TaskCard

NO_OPTIONS: Mapping[str, Any] = {}


def resolve(
    card: TaskCard,
    mixers: Mapping[str, str],
    seeds: Sequence[int],
    *,
    is_own: bool = False,
    task_options: Mapping[str, Any] = NO_OPTIONS,
    mixer_options: Mapping[str, Mapping[str, Any]] = NO_OPTIONS,
    max_steps: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    dim: int | None = None,
    num_layers: int | None = None,
    num_heads: int | None = None,
    model: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    threads: int | None = None,
) -> CompareConfig:
    """The configuration; what is None is taken from the task's card.

    Args:
        card: of the task.
        mixers: label -> registry name, equal but for variants, in the order of the table.
        seeds: of the runs.
        is_own: the task is in no registry.
        task_options: that differ from the card.
        mixer_options: label -> options.
        max_steps: updates of each run.
        batch_size: sequences of an update.
        lr: peak learning rate.
        dim: channels.
        num_layers: blocks.
        num_heads: heads, where a mixer has them.
        model: registry name of the backbone.
        device: or "auto".
        precision: "float32" or "bf16".
        threads: of the CPU; torch's own choice if None.

    Raises:
        InputError: an unknown name, or a value out of range.
    """
    for name in mixers.values():
        mixer_card(name)
    check_choice("precision", precision, PRECISIONS)
    budget = default_budget(card)
    return CompareConfig(
        task=card.name,
        own_card=card if is_own else None,
        mixers=tuple(mixers),
        variants={label: name for label, name in mixers.items() if label != name},
        seeds=tuple(seeds),
        dim=_or(dim, budget.dim),
        num_layers=_or(num_layers, budget.num_layers),
        num_heads=_or(num_heads, budget.num_heads),
        train=train_config(
            budget,
            max_steps=_or(max_steps, budget.max_steps),
            batch_size=_or(batch_size, budget.batch_size),
            lr=budget.lr if lr is None else lr,
            precision=PRECISIONS[precision],
        ),
        task_options=task_options,
        mixer_options=mixer_options,
        model=model or default_model(card, task_options),
        device=resolve_device(device),
        threads=torch.get_num_threads() if threads is None else threads,
    )


def _or(given: int | None, default: int) -> int:
    return default if given is None else given
