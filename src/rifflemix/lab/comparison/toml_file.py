"""Comparisons as TOML: the keys are the arguments of `rifflemix.compare`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.lab.comparison.choices import SETTINGS, check_settings
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.runs.options import PRECISIONS
from rifflemix.mixers.named import ALL

_MOST_BYTES = 1 << 20
TOML_FILE = "config.toml"
_CHOICES = {"task": str, "mixers": (list, dict), "seeds": (int, list), "data_dir": str}
_WORDS = {
    "task": "the name of a task",
    "mixers": "'all', a list of names, or a table from labels to names",
    "seeds": "a number of seeds, or a list of them",
    "data_dir": "the path of a folder",
}


def read_config(path: Path) -> dict[str, Any]:
    """What a file chooses: task, mixers, seeds, data_dir and settings, each where it is there.

    Raises:
        InputError: no such file, not TOML, or a key or value that `rifflemix.compare` has not.
    """
    try:
        with path.open("rb") as file:  # perhaps a pipe, which has no size
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InputError(f"config: {path} holds more than {_MOST_BYTES:,} bytes")
        values = tomllib.loads(content.decode())
        _check_numbers(values)
    except OSError as error:
        raise InputError(f"config: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"config: {path} is not TOML: {error}") from error
    known = (*_CHOICES, *SETTINGS)
    try:
        for name, value in values.items():
            if name not in known:
                raise unknown_name("key", name, known)
            is_all = name == "mixers" and value == ALL
            if name in _CHOICES and not is_all and not _is_of(value, _CHOICES[name]):
                raise bad_argument(name, _WORDS[name], repr(value))
        check_settings({name: values[name] for name in values if name in SETTINGS})
    except InputError as error:
        raise InputError(f"config: {path}: {error}") from error
    return values


def _check_numbers(value: Any) -> None:
    """Raise ValueError at a number that TOML does not have: it may be as long as the file."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a whole number has more than 64 bits")
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for inner in parts:
        _check_numbers(inner)


def config_text(config: CompareConfig) -> str | None:
    """A file that chooses this very comparison, but for where its data lies.

    None where no file can: the task is in no registry, or an option is None, which TOML has not.
    """
    values = {
        "task": config.task,
        "mixers": {label: config.mixer_name(label) for label in config.mixers}
        if config.variants
        else list(config.mixers),
        "seeds": list(config.seeds),
        "max_steps": config.train.max_steps,
        "batch_size": config.train.batch_size,
        "lr": list(config.tuned.get("lr", ())) or config.train.lr,
        "dim": config.dim,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "model": config.model,
        "device": config.device,
        "precision": next(k for k, v in PRECISIONS.items() if v == config.train.precision),
        "threads": config.threads,
        **({} if config.context_parallel == 1 else {"context_parallel": config.context_parallel}),
        "task_options": dict(config.task_options),
        "mixer_options": {name: dict(of) for name, of in config.mixer_options.items()},
        "train_options": config.train_options,
    }
    if config.own_card is not None or not _can_be_toml(values):
        return None
    return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items() if value != {})


def _is_of(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _can_be_toml(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _can_be_toml(of) for key, of in value.items())
    if isinstance(value, list | tuple):
        return all(map(_can_be_toml, value))
    return isinstance(value, str | int | float)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml(key)} = {_toml(of)}" for key, of in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(float(value))
    # JSON writes whole numbers, true, false and texts as TOML does, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
