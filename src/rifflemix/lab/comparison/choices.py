"""Build a checked configuration from the choices of a user, or from a TOML file."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rifflemix.errors import InputError, bad_argument, check_choice, unknown_name
from rifflemix.lab.comparison.config import MOST_SEEDS, NO_OPTIONS, CompareConfig, train_config
from rifflemix.lab.comparison.defaults import (
    all_mixers,
    default_budget,
    default_mixers,
    default_model,
)
from rifflemix.lab.comparison.plan import fold_seeds, folds_of, user_seeds
from rifflemix.lab.runs.environment import resolve_device
from rifflemix.lab.runs.options import PRECISIONS
from rifflemix.lab.tasks import TaskCard
from rifflemix.mixers import TokenMixer, mixer_card, register_mixer
from rifflemix.mixers.registry import ALL
from rifflemix.models.pretrained import as_json


def resolve(
    card: TaskCard,
    mixers: Mapping[str, str],
    seeds: Sequence[int],
    *,
    is_own: bool = False,
    task_options: Mapping[str, Any] = NO_OPTIONS,
    mixer_options: Mapping[str, Mapping[str, Any]] = NO_OPTIONS,
    model_options: Mapping[str, Any] = NO_OPTIONS,
    train_options: Mapping[str, Any] = NO_OPTIONS,
    max_steps: int | None = None,
    batch_size: int | None = None,
    lr: float | Sequence[float] | None = None,
    dim: int | None = None,
    num_layers: int | None = None,
    num_heads: int | None = None,
    model: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    threads: int | None = None,
    context_parallel: int = 1,
    stop_early: bool = False,
) -> CompareConfig:
    """Build the configuration; the card of the task replaces None.

    Args:
        card: card of the task.
        mixers: label -> registry name, in the order of the table; they differ for variants.
        seeds: seeds of the runs. If the task has folds, each seed becomes one run per fold.
        is_own: the task is in no registry.
        task_options: that differ from the card.
        mixer_options: label -> options.
        model_options: further settings of the backbone, such as short_conv.
        train_options: further settings of `rifflemix.lab.train.TrainConfig`.
        max_steps: updates of each run.
        batch_size: sequences of an update.
        lr: peak learning rate; of several every mixer tries each, and validation chooses.
        dim: channels.
        num_layers: blocks.
        num_heads: heads, for mixers with heads.
        model: registry name of the backbone.
        device: or "auto".
        precision: "float32" or "bf16".
        threads: CPU threads. None chooses the number by the size of the model.
        context_parallel: processes of torchrun that share each sequence.
        stop_early: stop the worse half of several learning rates early.

    Returns:
        The configuration.

    Raises:
        InputError: an unknown name, or a value out of range.

    Example:
        >>> import rifflemix as rm
        >>> from rifflemix.lab.comparison import resolve
        >>> card, options = rm.tasks.task_card("digits"), {"csp-4": {"group_size": 4}}
        >>> config = resolve(card, {"csp-4": "csp"}, seeds=[0], mixer_options=options)
        >>> config.dim, config.num_layers, config.train.max_steps
        (64, 2, 400)
    """
    for name in mixers.values():
        mixer_card(name)
    check_choice("precision", precision, PRECISIONS)
    budget = default_budget(card)
    rates = _rates(budget.lr if lr is None else lr)
    return CompareConfig(
        task=card.name,
        own_card=card if is_own else None,
        mixers=tuple(mixers),
        variants={label: name for label, name in mixers.items() if label != name},
        seeds=fold_seeds(seeds, folds_of(task_options)),
        dim=_or(dim, budget.dim),
        num_layers=_or(num_layers, budget.num_layers),
        num_heads=_or(num_heads, budget.num_heads),
        train=train_config(
            budget,
            max_steps=_or(max_steps, budget.max_steps),
            batch_size=_or(batch_size, budget.batch_size),
            lr=rates[0],
            precision=PRECISIONS[precision],
            options=_kept("training", train_options),
        ),
        task_options=task_options,
        mixer_options={label: _kept(label, options) for label, options in mixer_options.items()},
        model_options=_kept("the model", model_options),
        tuned={"lr": rates} if len(rates) > 1 else {},
        model=model or default_model(card, task_options),
        device=resolve_device(device),
        threads=threads,
        context_parallel=context_parallel,
        stop_early=stop_early,
    )


def _kept(label: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as in results, so that a continued comparison has equal settings."""
    kept: dict[str, Any] = {}
    for name, value in options.items():
        try:
            kept[name] = as_json(value)
        except ValueError:
            expected = "a text, a finite number, a bool, None or a list of them"
            raise bad_argument(f"option {name} of {label}", expected, repr(value)) from None
    return kept


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _rates(lr: float | Sequence[float]) -> tuple[float, ...]:
    if not isinstance(lr, Sequence):
        return (lr,)
    if not lr:
        raise bad_argument("lr", "a number over 0, or several", "none")
    return tuple(lr)


SETTINGS = tuple(
    name
    for name, parameter in inspect.signature(resolve).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "is_own"
)
"""Settings of a caller other than task, mixers and seeds."""


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise InputError for names or types of settings that `resolve` does not accept."""
    hints = get_type_hints(resolve)
    for name, value in settings.items():
        if name not in SETTINGS:
            raise unknown_name("setting of compare", name, SETTINGS)
        hint = hints[name]
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        plain = [get_origin(kind) or kind for kind in kinds]
        if not any(_is_of(value, kind) for kind in plain):
            expected = " or ".join(_WORDS[kind] for kind in plain if kind in _WORDS)
            raise bad_argument(name, expected, repr(value))
    for label, value in settings.get("mixer_options", {}).items():
        if not isinstance(value, Mapping):
            raise bad_argument(f"mixer_options {label}", _WORDS[abc.Mapping], repr(value))


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    abc.Sequence: "a list of them",
    abc.Mapping: "a mapping from names",
}


def _is_of(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        kind = int if kind is int else (int, float)
        return isinstance(value, kind) and not isinstance(value, bool)
    if kind is abc.Sequence and isinstance(value, str):
        return False
    return isinstance(value, kind)


def chosen_mixers(
    mixers: Any, task: str | TaskCard
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return label -> name and label -> options for the argument `mixers` of `rm.compare`.

    Raises:
        InputError: neither names, classes nor labels of these.
    """
    what = f"'{ALL}', a list of names or classes, or a mapping from labels"
    if mixers is None:
        mixers = default_mixers(task)
    elif isinstance(mixers, str) and mixers == ALL:
        mixers = [ALL]
    if isinstance(mixers, Mapping):
        given: Iterable[tuple[Any, Any]] = mixers.items()
    elif isinstance(mixers, Sequence) and not isinstance(mixers, str):
        given = [(None, mixer) for mixer in mixers]
    else:
        raise bad_argument("mixers", what, repr(mixers))
    labels: dict[str, str] = {}
    options: dict[str, dict[str, Any]] = {}
    for label, mixer in _without_all(given, task):
        if isinstance(mixer, tuple) and label is not None:
            if len(mixer) != 2 or not isinstance(mixer[1], Mapping):
                raise bad_argument(
                    f"mixers[{label!r}]", "a name, or a pair of a name and options", repr(mixer)
                )
            mixer, options[label] = mixer[0], dict(mixer[1])
        name = _name(mixer)
        label = name if label is None else label
        if label in labels:
            raise bad_argument("mixers", "each only once", f"{label!r} twice")
        labels[label] = name
    return labels, options


def _without_all(
    given: Iterable[tuple[Any, Any]], task: str | TaskCard
) -> Iterator[tuple[Any, Any]]:
    """Replace "all" by every mixer that fits the task."""
    for label, mixer in given:
        if isinstance(mixer, str) and mixer == ALL and label in (None, ALL):
            yield from ((None, name) for name in all_mixers(task))
        else:
            yield label, mixer


def _name(mixer: Any) -> str:
    if isinstance(mixer, str):
        return mixer
    if isinstance(mixer, type) and issubclass(mixer, TokenMixer):
        return register_mixer(mixer).card.name
    raise bad_argument("mixers", "names or subclasses of TokenMixer", repr(mixer))


def chosen_seeds(seeds: Any) -> tuple[int, ...]:
    """Convert a number of seeds, or a list, to seeds.

    Raises:
        InputError: neither, or too many.
    """
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        return tuple(seeds)
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST_SEEDS:
        raise bad_argument(
            "seeds", f"a number of seeds, 1 to {MOST_SEEDS:,}, or a list of them", repr(seeds)
        )
    return tuple(range(seeds))


_MOST_BYTES = 1 << 20
TOML_FILE = "config.toml"
_CHOICES = {"task": str, "mixers": (list, dict), "seeds": (int, list), "data_dir": str}
_CHOICE_WORDS = {
    "task": "the name of a task",
    "mixers": "'all', a list of names, or a table from labels to names",
    "seeds": "a number of seeds, or a list of them",
    "data_dir": "the path of a folder",
}


def read_config(path: Path) -> dict[str, Any]:
    """Read task, mixers, seeds, data_dir and settings from a file, if it has them.

    Raises:
        InputError: no such file, not TOML, or a key or value that `rm.compare` does not have.
    """
    try:
        with path.open("rb") as file:  # a pipe has no size
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
            if name in _CHOICES and not is_all and not _is_plain(value, _CHOICES[name]):
                raise bad_argument(name, _CHOICE_WORDS[name], repr(value))
        check_settings({name: values[name] for name in values if name in SETTINGS})
    except InputError as error:
        raise InputError(f"config: {path}: {error}") from error
    return values


def _check_numbers(value: Any) -> None:
    """Raise ValueError for numbers that TOML does not have."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a whole number has more than 64 bits")
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for inner in parts:
        _check_numbers(inner)


def config_text(config: CompareConfig) -> str | None:
    """Write a file that describes this comparison, except for the folder of its data.

    Return None if the task is not registered, or an option is None, because TOML has no None.
    """
    values = {
        "task": config.task,
        "mixers": {label: config.mixer_name(label) for label in config.mixers}
        if config.variants
        else list(config.mixers),
        "seeds": list(user_seeds(config.seeds, folds_of(config.task_options))),
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
        **({"stop_early": True} if config.stop_early else {}),
        "task_options": dict(config.task_options),
        "model_options": dict(config.model_options),
        "mixer_options": {name: dict(of) for name, of in config.mixer_options.items()},
        "train_options": config.train_options,
    }
    if config.own_card is not None or not _can_be_toml(values):
        return None
    return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items() if value != {})


def _is_plain(value: Any, kinds: Any) -> bool:
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
    # JSON and TOML have the same form of integers, booleans and texts, except for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
