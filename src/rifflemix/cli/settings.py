"""From the options that `compare` and `train` share to a checked configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rifflemix.cli.options import (
    parse_mixer_options,
    parse_precision,
    parse_task_options,
    parse_threads,
)

if TYPE_CHECKING:
    from rifflemix.comparison import CompareConfig
    from rifflemix.runs.options import RunOptions


def compare_config(
    task: str, mixers: tuple[str, ...], seeds: tuple[int, ...], options: RunOptions
) -> CompareConfig:
    """The resolved configuration.

    Raises:
        InputError: an unknown name, or a value out of range.
    """
    from rifflemix.comparison import CompareConfig, default_budget, default_model, train_config
    from rifflemix.mixers import mixer_card
    from rifflemix.runs.device import resolve_device

    task_options = parse_task_options(options.task_option, task)
    for name in mixers:
        mixer_card(name)
    budget = default_budget(task)
    return CompareConfig(
        task=task,
        mixers=mixers,
        seeds=seeds,
        dim=_or(options.dim, budget.dim),
        num_layers=_or(options.num_layers, budget.num_layers),
        num_heads=_or(options.num_heads, budget.num_heads),
        train=train_config(
            budget,
            max_steps=_or(options.max_steps, budget.max_steps),
            batch_size=_or(options.batch_size, budget.batch_size),
            lr=budget.lr if options.lr is None else options.lr,
            precision=parse_precision(options.precision),
        ),
        task_options=task_options,
        mixer_options=parse_mixer_options(options.mixer_option, mixers),
        model=options.model or default_model(task, task_options),
        device=resolve_device(options.device),
        threads=parse_threads(options.threads),
    )


def _or(given: int | None, default: int) -> int:
    return default if given is None else given
