"""From what a user chooses to a checked configuration: of the command and of `rm.compare`."""

from __future__ import annotations

import inspect
from collections import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch

from rifflemix.errors import bad_argument, check_choice, unknown_name
from rifflemix.lab.comparison.budgets import NO_OPTIONS, default_budget, train_config
from rifflemix.lab.comparison.config import (
    MOST_SEEDS,
    CompareConfig,
    all_mixers,
    default_mixers,
    default_model,
)
from rifflemix.lab.runs.device import resolve_device
from rifflemix.lab.runs.options import PRECISIONS
from rifflemix.lab.tasks import TaskCard
from rifflemix.mixers import TokenMixer, mixer_card, register_mixer
from rifflemix.mixers.named import ALL
from rifflemix.models.pretrained import as_json


def resolve(
    card: TaskCard,
    mixers: Mapping[str, str],
    seeds: Sequence[int],
    *,
    is_own: bool = False,
    task_options: Mapping[str, Any] = NO_OPTIONS,
    mixer_options: Mapping[str, Mapping[str, Any]] = NO_OPTIONS,
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
) -> CompareConfig:
    """The configuration; what is None is taken from the task's card.

    Args:
        card: of the task.
        mixers: label -> registry name, equal but for variants, in the order of the table.
        seeds: of the runs.
        is_own: the task is in no registry.
        task_options: that differ from the card.
        mixer_options: label -> options.
        train_options: further settings of `rifflemix.lab.train.TrainConfig`.
        max_steps: updates of each run.
        batch_size: sequences of an update.
        lr: peak learning rate; of several every mixer tries each, and validation chooses.
        dim: channels.
        num_layers: blocks.
        num_heads: heads, where a mixer has them.
        model: registry name of the backbone.
        device: or "auto".
        precision: "float32" or "bf16".
        threads: of the CPU; torch's own choice if None.
        context_parallel: processes of torchrun that share each sequence.

    Raises:
        InputError: an unknown name, or a value out of range.
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
        seeds=tuple(seeds),
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
        tuned={"lr": rates} if len(rates) > 1 else {},
        model=model or default_model(card, task_options),
        device=resolve_device(device),
        threads=torch.get_num_threads() if threads is None else threads,
        context_parallel=context_parallel,
    )


def _kept(label: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as results hold them, so that a comparison that goes on has the same."""
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
"""What a caller may choose beside task, mixers and seeds."""


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise InputError unless these are settings of `resolve`, each of a kind that it takes."""
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
    """Label -> name, and label -> options, of the `mixers` of `rifflemix.compare` on a task.

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
    """The same labels and mixers, with every mixer that fits the task in place of "all"."""
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
    """The seeds that a number of them, or a list, stands for.

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
