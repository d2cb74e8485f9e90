"""Parse the texts of options, and build a configuration from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.json_values import parse_json
from rifflemix.lab.runs.options import MOST_THREADS, PRECISIONS

if TYPE_CHECKING:
    from rifflemix.lab.comparison import CompareConfig
    from rifflemix.lab.runs.options import RunOptions


def parse_precision(text: str) -> str:
    """Return the name for `TrainConfig.precision`."""
    if text not in PRECISIONS:
        raise bad_argument("--precision", " or ".join(PRECISIONS), repr(text))
    return PRECISIONS[text]


def parse_threads(count: int | None) -> int:
    """Return the number of CPU threads. None means the default of torch."""
    import torch

    threads = torch.get_num_threads() if count is None else count
    if not 1 <= threads <= MOST_THREADS:
        raise bad_argument("--threads", f"1 to {MOST_THREADS:,}", threads)
    return threads


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3` -> (0, 1, 2); `7,11` -> (7, 11); `7,` -> (7,)."""
    from rifflemix.lab.comparison import MOST_SEEDS

    parts = text.removesuffix(",").split(",")
    numbers = [_parse(part, "--seeds", "a whole number", int) for part in parts]
    if "," in text:
        return tuple(numbers)
    if not 1 <= numbers[0] <= MOST_SEEDS:
        hint = ""
        if numbers[0] > 0:
            hint = "use --seed 7 or --seeds 7,11 to name seeds"
        raise bad_argument("--seeds", f"a number of seeds, 1 to {MOST_SEEDS:,}", numbers[0], hint)
    return tuple(range(numbers[0]))


def one_or_many(seeds: str | None, seed: int | None) -> str | None:
    """Return the text of --seeds, also for --seed."""
    if seed is None:
        return seeds
    if seeds is not None:
        raise bad_argument("--seed", "none next to --seeds", seed)
    return f"{seed},"


def parse_shard(text: str) -> tuple[int, int]:
    """`1/4` -> (1, 4)."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise bad_argument("--shard", "I/N with I from 1 to N, such as 1/4", repr(text))
    return number, count


def parse_numbers(text: str, option: str) -> float | list[float]:
    """`0.1` -> 0.1; `0.1,0.3` -> [0.1, 0.3]."""
    numbers = [_parse(part, option, "a number", float) for part in text.split(",")]
    return numbers if len(numbers) > 1 else numbers[0]


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """`a,b,c` -> ("a", "b", "c")."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise bad_argument(option, "names separated by commas", repr(text))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise bad_argument(option, "each only once", f"{twice!r} twice")
    return names


def parse_mixers(text: str) -> dict[str, str]:
    """`csp,csp-4=csp` -> {"csp": "csp", "csp-4": "csp"}: label -> mixer."""
    mixers: dict[str, str] = {}
    for part in parse_names(text, "--mixers"):
        label, equals, name = part.partition("=")
        if equals and not (label and name):
            raise bad_argument("--mixers", "NAME or LABEL=NAME, separated by commas", repr(part))
        if label in mixers:
            raise bad_argument("--mixers", "each only once", f"{label!r} twice")
        mixers[label] = name or label
    return mixers


def parse_task_options(pairs: Iterable[str] | None, task: str) -> dict[str, Any]:
    """Parse KEY=VALUE texts with the types of the task's options."""
    from rifflemix.lab.tasks import task_card

    return _typed(pairs or (), task_card(task).options, "--task-option", f"option of task {task}")


def parse_train_options(pairs: Iterable[str] | None) -> dict[str, Any]:
    """Parse KEY=VALUE texts with the types of the training settings."""
    if not pairs:
        return {}
    from rifflemix.lab.train.config import TrainConfig

    defaults = TrainConfig().to_dict()
    return _typed(pairs, defaults, "--train-option", "training setting")


def parse_model_settings(
    pairs: Iterable[str] | None, model: str, option: str = "--set"
) -> dict[str, Any]:
    """Parse KEY=VALUE texts by the settings of a registered model."""
    if not pairs:
        return {}
    from rifflemix.models import model_settings

    return _typed(pairs, model_settings(model), option, f"setting of model {model}")


def parse_mixer_options(
    pairs: Iterable[str] | None, mixers: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Parse MIXER.KEY=VALUE texts with the types of the mixers' options.

    `mixers` contains label -> name.
    """
    from rifflemix.mixers.registry import mixer_options

    chosen = list(mixers)
    by_mixer: dict[str, list[str]] = {}
    for pair in pairs or ():
        mixer, dot, rest = pair.partition(".")
        if not dot or "=" in mixer:
            raise bad_argument("--mixer-option", "MIXER.KEY=VALUE", repr(pair))
        if mixer not in chosen:
            raise unknown_name("mixer in --mixer-option", mixer, chosen)
        by_mixer.setdefault(mixer, []).append(rest)
    return {
        mixer: _typed(
            rests, mixer_options(mixers[mixer]), "--mixer-option", f"option of mixer {mixer}"
        )
        for mixer, rests in by_mixer.items()
    }


def _typed(
    pairs: Iterable[str], defaults: Mapping[str, Any], option: str, kind: str
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise bad_argument(option, "KEY=VALUE", repr(pair))
        if key not in defaults:
            raise unknown_name(kind, key, defaults)
        if key in values:
            raise bad_argument(option, "each key only once", f"{key} twice")
        values[key] = parse_value(text, defaults[key], f"{option} {key}")
    return values


def parse_grid(
    pairs: Iterable[str], defaults: Mapping[str, Any], recipe: str
) -> dict[str, list[Any]]:
    """Parse KEY=A,B,C texts into lists of values with the types of the defaults.

    A comma in brackets is part of a value: `sizes=[1,2],[3,4]`.
    """
    grid: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise bad_argument("--set", "KEY=A,B,C", repr(pair))
        if key not in defaults:
            raise unknown_name(f"setting of {recipe}", key, defaults)
        if key in grid:
            raise bad_argument("--set", "each key only once", f"{key} twice")
        parts = re.split(r",(?![^\[]*\])", text)
        if not all(parts):
            raise bad_argument(f"--set {key}", "values separated by commas", repr(text))
        grid[key] = [parse_value(part, defaults[key], f"--set {key}") for part in parts]
    return grid


def parse_value(text: str, default: Any, name: str) -> Any:
    """Parse a text into the type of a default.

    If the default is None, or the text starts with "[", the text is parsed as JSON. A text that is
    not JSON stays a string. A default of a tuple requires a list.
    """
    if isinstance(default, bool):
        return _parse(text, name, "true or false", {"true": True, "false": False}.__getitem__)
    if isinstance(default, int):
        return _parse(text, name, "a whole number", int)
    if isinstance(default, float):
        return _parse(text, name, "a number", float)
    if isinstance(default, str) and not text.startswith("["):
        return text
    if isinstance(default, tuple):
        value = _parse(text, name, "a list such as [1, 2]", parse_json)
        if not isinstance(value, list):
            raise bad_argument(name, "a list such as [1, 2]", repr(text))
        return value
    try:
        return parse_json(text)
    except ValueError:
        return text


def _parse(text: str, name: str, expected: str, convert: Any) -> Any:
    try:
        return convert(text)
    except (KeyError, ValueError):
        raise bad_argument(name, expected, repr(text)) from None


_OF_DATA = (
    "data", "input", "label", "kind", "context", "horizon", "folds", "frame", "hop", "tokenizer",
    "truncate",
)  # fmt: skip
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
    """Return the resolved configuration.

    Args:
        task: registry name.
        mixers: label -> name.
        seeds: seeds of the runs.
        options: options of the command. They win over the file.
        of_file: settings of a configuration file.

    Raises:
        InputError: an unknown name, or a value out of range.
    """
    from rifflemix.lab.comparison import default_model, resolve
    from rifflemix.lab.tasks import task_card
    from rifflemix.mixers import mixer_card

    task_options = _task_options(task, options)
    for name in mixers.values():
        mixer_card(name)
    if options.precision is not None:
        parse_precision(options.precision)
    settings = dict(of_file or {})
    settings["task_options"] = {**settings.get("task_options", {}), **task_options}
    train_options = _train_options(options)
    settings["train_options"] = {**settings.get("train_options", {}), **train_options}
    typed = parse_mixer_options(options.mixer_option, mixers)
    of_mixers = settings.get("mixer_options", {})
    settings["mixer_options"] = {
        **of_mixers,
        **{name: {**of_mixers.get(name, {}), **of} for name, of in typed.items()},
    }
    if options.model_option:
        model = options.model or settings.get("model")
        model = model or default_model(task_card(task), settings["task_options"])
        own = parse_model_settings(options.model_option, model, "--model-option")
        settings["model_options"] = {**settings.get("model_options", {}), **own}
    if options.threads is not None:
        parse_threads(options.threads)
    for name in _SAME_NAME:
        value = getattr(options, name)
        if value is not None:
            settings[name] = value
    if options.lr is not None:
        settings["lr"] = parse_numbers(options.lr, "--lr")
    return resolve(task_card(task), mixers, seeds, **settings)


def _train_options(options: RunOptions) -> dict[str, Any]:
    """Combine --train-option with the settings that have an option of their own."""
    values = parse_train_options(options.train_option)
    named = {"metric": options.metric, "compile": options.compile or None}
    for name, value in named.items():
        if value is None:
            continue
        if name in values:
            raise bad_argument(f"--{name}", "the setting once", f"--train-option {name} as well")
        values[name] = value
    return values


def _task_options(task: str, options: RunOptions) -> dict[str, Any]:
    """Combine --task-option with the options for user data."""
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
            raise bad_argument(f"--{name}", "the option once", f"--task-option {name} as well")
        values[name] = value if isinstance(value, int) else str(value)
    return values
