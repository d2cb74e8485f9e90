"""From the options that `compare` and `train` share to a checked configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rifflemix.cli.options import (
    parse_device,
    parse_mixer_options,
    parse_precision,
    parse_task_options,
    parse_threads,
)

if TYPE_CHECKING:
    from rifflemix.comparison import CompareConfig


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options as typed; None takes the task's default budget."""

    task: str
    model: str | None
    max_steps: int | None
    batch_size: int | None
    lr: float | None
    dim: int | None
    layers: int | None
    heads: int | None
    task_option: Sequence[str] | None
    mixer_option: Sequence[str] | None
    device: str
    precision: str
    threads: int | None

    def compare_config(self, mixers: tuple[str, ...], seeds: tuple[int, ...]) -> CompareConfig:
        """The resolved configuration.

        Raises:
            InputError: an unknown name, or a value out of range.
        """
        from rifflemix.comparison import (
            CompareConfig,
            default_budget,
            default_model,
            train_config,
        )
        from rifflemix.mixers import mixer_card

        task_options = parse_task_options(self.task_option, self.task)
        for name in mixers:
            mixer_card(name)
        budget = default_budget(self.task)
        return CompareConfig(
            task=self.task,
            mixers=mixers,
            seeds=seeds,
            dim=_or(self.dim, budget.dim),
            num_layers=_or(self.layers, budget.num_layers),
            num_heads=_or(self.heads, budget.num_heads),
            train=train_config(
                budget,
                max_steps=_or(self.max_steps, budget.max_steps),
                batch_size=_or(self.batch_size, budget.batch_size),
                lr=budget.lr if self.lr is None else self.lr,
                precision=parse_precision(self.precision),
            ),
            task_options=task_options,
            mixer_options=parse_mixer_options(self.mixer_option, mixers),
            model=self.model or default_model(self.task, task_options),
            device=parse_device(self.device),
            threads=parse_threads(self.threads),
        )


def _or(given: int | None, default: int) -> int:
    return default if given is None else given
