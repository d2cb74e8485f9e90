"""Registry of all recipes, with the numbers that the papers report and the notes of notes.toml."""

from __future__ import annotations

import csv
import functools
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.lab.recipes import csp, dimension_mixer, sinkhorn, sliceformer, tost
from rifflemix.lab.recipes.base import Recipe
from rifflemix.plugins import EntryPoints, check_new_name

Builder = Callable[[], Recipe]
_Given = TypeVar("_Given", bound=Builder)
_Place = tuple[str, str, str, str, str]

_RECIPES: dict[str, Builder] = {
    name: build
    for paper in (csp, sliceformer, tost, dimension_mixer, sinkhorn)
    for name, build in paper.RECIPES.items()
}


def register_recipe(build: _Given) -> _Given:
    """Register a recipe under its name. Usable as a decorator.

    `rifflemix list recipes`, `reproduce`, `sweep` and `report` then know the recipe.

    Args:
        build: A function without arguments that returns a `Recipe`. The name of the recipe is
            PAPER/ENTRY, such as "mine/table1-digits".

    Returns:
        The argument, unchanged.

    Raises:
        InputError: The argument does not return a recipe, or the name is not valid or taken.

    Example:
        >>> import rifflemix as rm
        >>> @rm.register_recipe
        ... def digits():
        ...     return rm.recipes.Recipe(
        ...         name="mine/table1-digits", paper="Author 2026, A paper", table="Table 1",
        ...         row="TSSA", column="Digits", printed=98.5, task="digits",
        ...         task_options={"patch_size": 2}, model="encoder",
        ...         model_settings={"mixer": "tssa", "dim": 64, "num_heads": 4},
        ...         train=rm.train.TrainConfig(max_steps=1000, batch_size=32),
        ...     )
        >>> rm.recipes.get_recipe("mine/table1-digits").printed
        98.5
    """
    try:
        recipe = build() if callable(build) else None
    except TypeError as error:
        raise bad_argument("recipe", "a function without arguments", error) from error
    if not isinstance(recipe, Recipe):
        raise bad_argument("recipe", "a function that returns a Recipe", repr(build))
    check_new_name("recipe", recipe.name, build, _RECIPES)
    _RECIPES[recipe.name] = build
    _ENTRY_POINTS.registered()
    return build


_ENTRY_POINTS = EntryPoints("recipe", lambda: _RECIPES, register_recipe)


def list_recipes() -> list[str]:
    """List the names of all recipes, PAPER/ENTRY, grouped by paper.

    Returns:
        Names for `get_recipe`.

    Example:
        >>> import rifflemix as rm
        >>> [name for name in rm.recipes.list_recipes() if name.startswith("csp/")][:2]
        ['csp/table1-cifar10-head_shift', 'csp/table1-cifar10-head_shift-top5']
    """
    return _ENTRY_POINTS.names()


def usable_recipes() -> list[str]:
    """List recipes whose packages can be imported. Warn about the others.

    Returns:
        Names for `get_recipe`.

    Example:
        >>> import rifflemix as rm
        >>> "csp/table4-image" in rm.recipes.usable_recipes()
        True
    """
    return _ENTRY_POINTS.usable()


def get_recipe(name: str) -> Recipe:
    """Return a recipe by name, with the number that its paper reports and with its notes.

    Args:
        name: PAPER/ENTRY, as in `list_recipes()`.

    Returns:
        The recipe.

    Raises:
        InputError: the name is unknown; the message suggests the nearest name.

    Example:
        >>> import rifflemix as rm
        >>> rm.recipes.get_recipe("csp/table4-image").train.max_steps
        35156
    """
    _ENTRY_POINTS.look_up(name)
    if not isinstance(name, str) or name not in _RECIPES:
        raise unknown_name("recipe", name, list_recipes(), "rifflemix list recipes")
    recipe = _RECIPES[name]()
    paper = name.partition("/")[0]
    place = (paper, recipe.table, recipe.row, recipe.column, recipe.metric)
    printed = _reported().get(place, recipe.printed)
    return replace(recipe, printed=printed, notes=(*_notes_of(name), *recipe.notes))


@functools.cache
def _reported() -> dict[_Place, float]:
    """Read the reported numbers by paper, table, row, column and metric."""
    with Path(__file__).with_name("printed.csv").open(encoding="utf-8", newline="") as file:
        return {
            (e["paper"], e["table"], e["row"], e["column"], e["metric"]): float(e["number"])
            for e in csv.DictReader(file)
        }


@functools.cache
def _notes_of(name: str) -> tuple[str, ...]:
    """Return the notes of notes.toml on a recipe."""
    matches = ((pattern.fullmatch(name), notes) for pattern, notes in _notes())
    return tuple(match.expand(note) for match, notes in matches if match for note in notes)


@functools.cache
def _notes() -> list[tuple[re.Pattern[str], list[str]]]:
    text = Path(__file__).with_name("notes.toml").read_text(encoding="utf-8")
    return [(re.compile(pattern), notes) for pattern, notes in tomllib.loads(text).items()]
