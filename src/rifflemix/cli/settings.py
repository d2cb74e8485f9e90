"""From the options that `compare` and `train` share to a checked configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rifflemix.cli.options import (
    parse_mixer_options,
    parse_precision,
    parse_task_options,
    parse_threads,
)
from rifflemix.errors import bad_argument, unknown_name

if TYPE_CHECKING:
    from rifflemix.comparison import CompareConfig
    from rifflemix.runs.options import RunOptions

_OF_DATA = ("data", "input", "label")


def compare_config(
    task: str, mixers: Mapping[str, str], seeds: tuple[int, ...], options: RunOptions
) -> CompareConfig:
    """The resolved configuration; `mixers` are labels and the names behind them.

    Raises:
        InputError: an unknown name, or a value out of range.
    """
    from rifflemix.comparison import resolve
    from rifflemix.mixers import mixer_card
    from rifflemix.tasks import task_card

    task_options = _task_options(task, options)
    for name in mixers.values():
        mixer_card(name)
    parse_precision(options.precision)
    return resolve(
        task_card(task),
        mixers,
        seeds,
        task_options=task_options,
        mixer_options=parse_mixer_options(options.mixer_option, mixers),
        max_steps=options.max_steps,
        batch_size=options.batch_size,
        lr=options.lr,
        dim=options.dim,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        model=options.model,
        device=options.device,
        precision=options.precision,
        threads=parse_threads(options.threads),
    )


def _task_options(task: str, options: RunOptions) -> dict[str, Any]:
    """Those of --task-option, and those of tasks over data of the user's own."""
    from rifflemix.tasks import task_card

    values = parse_task_options(options.task_option, task)
    known = task_card(task).options
    for name in _OF_DATA:
        value = getattr(options, name)
        if value is None:
            continue
        if name not in known:
            raise unknown_name(f"option of task {task}", name, known)
        if name in values:
            raise bad_argument(f"--{name}", "it once", f"--task-option {name} too")
        values[name] = str(value)
    return values
