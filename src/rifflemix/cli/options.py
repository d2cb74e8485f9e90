"""How the texts of options become values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.json_values import parse_json
from rifflemix.lab.runs.options import MOST_THREADS, PRECISIONS


def parse_precision(text: str) -> str:
    """The name that `TrainConfig.precision` uses."""
    if text not in PRECISIONS:
        raise bad_argument("--precision", " or ".join(PRECISIONS), repr(text))
    return PRECISIONS[text]


def parse_threads(count: int | None) -> int:
    """The number of CPU threads, torch's own choice by default."""
    import torch

    threads = torch.get_num_threads() if count is None else count
    if not 1 <= threads <= MOST_THREADS:
        raise bad_argument("--threads", f"1 to {MOST_THREADS:,}", threads)
    return threads


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3` -> (0, 1, 2); `7,11` -> (7, 11)."""
    from rifflemix.lab.comparison import MOST_SEEDS

    numbers = [_parse(part, "--seeds", "a whole number", int) for part in text.split(",")]
    if len(numbers) > 1:
        return tuple(numbers)
    if not 1 <= numbers[0] <= MOST_SEEDS:
        hint = ""
        if numbers[0] > 0:
            hint = "for a seed of your own give a list (--seeds 7,11), or one to train as --seed"
        raise bad_argument("--seeds", f"a number of seeds, 1 to {MOST_SEEDS:,}", numbers[0], hint)
    return tuple(range(numbers[0]))


def parse_numbers(text: str, option: str) -> float | list[float]:
    """`0.1` -> 0.1; `0.1,0.3` -> [0.1, 0.3]."""
    numbers = [_parse(part, option, "a number", float) for part in text.split(",")]
    return numbers if len(numbers) > 1 else numbers[0]


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """`a,b,c` -> ("a", "b", "c")."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise bad_argument(option, "names with commas between them", repr(text))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise bad_argument(option, "each only once", f"{twice!r} twice")
    return names


def parse_mixers(text: str) -> dict[str, str]:
    """`csp,csp-4=csp` -> {"csp": "csp", "csp-4": "csp"}: labels and the mixers behind them."""
    mixers: dict[str, str] = {}
    for part in parse_names(text, "--mixers"):
        label, equals, name = part.partition("=")
        if equals and not (label and name):
            raise bad_argument("--mixers", "NAME or LABEL=NAME with commas between", repr(part))
        if label in mixers:
            raise bad_argument("--mixers", "each only once", f"{label!r} twice")
        mixers[label] = name or label
    return mixers


def parse_task_options(pairs: Iterable[str] | None, task: str) -> dict[str, Any]:
    """KEY=VALUE texts as the task's card types them."""
    from rifflemix.lab.tasks import task_card

    return _typed(pairs or (), task_card(task).options, "--task-option", f"option of task {task}")


def parse_train_options(pairs: Iterable[str] | None) -> dict[str, Any]:
    """KEY=VALUE texts as training settings type them."""
    if not pairs:
        return {}
    from rifflemix.lab.train.config import TrainConfig

    defaults = TrainConfig().to_dict()
    return _typed(pairs, defaults, "--train-option", "training setting")


def parse_model_settings(pairs: Iterable[str] | None, model: str) -> dict[str, Any]:
    """KEY=VALUE texts as the settings of a registered model type them; of nothing else, none."""
    if not pairs:
        return {}
    from rifflemix.models import model_settings

    return _typed(pairs, model_settings(model), "--set", f"setting of model {model}")


def parse_mixer_options(
    pairs: Iterable[str] | None, mixers: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """MIXER.KEY=VALUE texts as the mixers' defaults type them; `mixers`: label -> name."""
    from rifflemix.mixers.named import mixer_options

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
    """KEY=A,B,C texts as lists of values, typed as the defaults are.

    A comma within brackets belongs to a value: `sizes=[1,2],[3,4]`.
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
            raise bad_argument(f"--set {key}", "values with commas between them", repr(text))
        grid[key] = [parse_value(part, defaults[key], f"--set {key}") for part in parts]
    return grid


def parse_value(text: str, default: Any, name: str) -> Any:
    """A text as a value of the default's type.

    A default of None, or a text that is a JSON list, may stand for several types: there JSON
    decides, and what is not JSON stays text. Only a list can stand where the default is a tuple.
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
