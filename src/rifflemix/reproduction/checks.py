"""Checks of the entries of results.json that a report uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from rifflemix.errors import InputError
from rifflemix.recipes import Recipe

_TEXTS = ("name", "paper", "table", "row", "column", "metric", "unit")


def check_results(value: Mapping[str, Any]) -> None:
    """Check every entry that a report uses.

    Raises:
        InputError: one is missing or of another kind.
    """
    for name, (expected, is_right) in _ENTRIES.items():
        if name not in value:
            raise InputError(f"expected an entry {name!r}, got none")
        if not is_right(value[name]):
            raise InputError(f"expected {name} as {expected}, got {_shown(value[name])}")
    for name, (expected, is_right) in _LATER_ENTRIES.items():
        if name in value and not is_right(value[name]):
            raise InputError(f"expected {name} as {expected}, got {_shown(value[name])}")
    _check_recipe(value["recipe"])


def is_whole(value: Any, least: int = 0) -> bool:
    """A whole number from `least` on."""
    return isinstance(value, int) and is_number(value) and value >= least


def is_number(value: Any) -> bool:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _check_recipe(values: Mapping[str, Any]) -> None:
    unknown = sorted(values.keys() - {field.name for field in fields(Recipe)})
    if unknown:
        raise InputError(
            f"expected a recipe with the fields that this version of rifflemix knows, got one with "
            f"{unknown[0]!r}, as a newer version may write it"
        )
    try:
        recipe = Recipe.from_dict(values)
    except KeyError as error:
        raise InputError(f"expected a recipe with {error}, got none") from error
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected a recipe as this version of rifflemix writes it, got one where {error}"
        ) from error
    for name in _TEXTS:
        text = getattr(recipe, name)
        if not isinstance(text, str):
            raise InputError(f"expected recipe.{name} as a text, got {_shown(text)}")
    if not _is_number_or_none(recipe.printed):
        raise InputError(f"expected recipe.printed as a number, got {_shown(recipe.printed)}")
    if not _is_positive(recipe.width):
        raise InputError(f"expected recipe.width as a number over 0, got {_shown(recipe.width)}")


def _shown(value: Any) -> str:
    """A value, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_number_or_none(value: Any) -> bool:
    return value is None or is_number(value)


def _is_positive_or_none(value: Any) -> bool:
    return value is None or _is_positive(value)


def _is_utilisation(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and is_number(value.get("share")))


def _is_history(value: Any) -> bool:
    """A result with its evaluations: the step and every metric of each."""
    history = value.get("validation") if isinstance(value, dict) else None
    return isinstance(history, list) and all(
        isinstance(at, dict) and "step" in at and all(map(is_number, at.values())) for at in history
    )


def _is_origin(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and isinstance(value.get("recipe"), str)
        and isinstance(value.get("blake2b"), str)
        and is_whole(value.get("step"))
    )


_Checks = Mapping[str, tuple[str, Callable[[Any], bool]]]

_ENTRIES: _Checks = {
    "recipe": ("an object", lambda value: isinstance(value, dict)),
    "seed": ("a whole number", is_whole),
    "ours": ("a number or null", _is_number_or_none),
    "validation": ("a number or null", _is_number_or_none),
    "steps": ("a whole number", is_whole),
    "steps_planned": ("a whole number of at least 1", lambda value: is_whole(value, 1)),
    "parameters": ("a whole number", is_whole),
    "steps_per_second": ("a number over 0 or null", _is_positive_or_none),
    "utilisation": ("an object with a number 'share', or null", _is_utilisation),
    "peak_memory_bytes": ("a number over 0 or null", _is_positive_or_none),
    "result": ("an object with a list 'validation' of steps and metrics", _is_history),
}

# Entries that files of earlier versions do not have.
_LATER_ENTRIES: _Checks = {
    "started_from": ("an object with 'recipe', 'step' and 'blake2b', or null", _is_origin),
    "batch_size_planned": ("a whole number of at least 1", lambda value: is_whole(value, 1)),
}
