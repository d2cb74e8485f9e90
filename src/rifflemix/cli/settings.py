"""From the options that `compare` and `train` share to a checked configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rifflemix.cli.options import (
    parse_mixer_options,
    parse_numbers,
    parse_precision,
    parse_task_options,
    parse_threads,
    parse_train_options,
)
from rifflemix.errors import bad_argument, unknown_name

if TYPE_CHECKING:
    from rifflemix.lab.comparison import CompareConfig
    from rifflemix.lab.runs.options import RunOptions

_OF_DATA = ("data", "input", "label")
_SAME_NAME = (
    "max_steps", "batch_size", "dim", "num_layers", "num_heads", "model", "device", "precision",
    "threads", "context_parallel",
)  # fmt: skip


def compare_config(
    task: str,
    mixers: Mapping[str, str],
    seeds: tuple[int, ...],
    options: RunOptions,
    of_file: Mapping[str, Any] | None = None,
) -> CompareConfig:
    """The resolved configuration.

    Args:
        task: registry name.
        mixers: labels and the names behind them.
        seeds: of the runs.
        options: as typed; they win over the file.
        of_file: settings of a configuration file.

    Raises:
        InputError: an unknown name, or a value out of range.
    """
    from rifflemix.lab.comparison import resolve
    from rifflemix.lab.tasks import task_card
    from rifflemix.mixers import mixer_card

    task_options = _task_options(task, options)
    for name in mixers.values():
        mixer_card(name)
    if options.precision is not None:
        parse_precision(options.precision)
    settings = dict(of_file or {})
    settings["task_options"] = {**settings.get("task_options", {}), **task_options}
    train_options = parse_train_options(options.train_option)
    settings["train_options"] = {**settings.get("train_options", {}), **train_options}
    typed = parse_mixer_options(options.mixer_option, mixers)
    of_mixers = settings.get("mixer_options", {})
    settings["mixer_options"] = {
        **of_mixers,
        **{name: {**of_mixers.get(name, {}), **of} for name, of in typed.items()},
    }
    if options.threads is not None:
        parse_threads(options.threads)
    for name in _SAME_NAME:
        value = getattr(options, name)
        if value is not None:
            settings[name] = value
    if options.lr is not None:
        settings["lr"] = parse_numbers(options.lr, "--lr")
    return resolve(task_card(task), mixers, seeds, **settings)


def _task_options(task: str, options: RunOptions) -> dict[str, Any]:
    """Those of --task-option, and those of tasks over data of the user's own."""
    from rifflemix.lab.tasks import task_card

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
