"""Registry of all recipes, with one line per paper."""

from __future__ import annotations

from collections.abc import Callable

from rifflemix.errors import unknown_name
from rifflemix.lab.recipes import csp, dimension_mixer, sinkhorn, sliceformer, tost
from rifflemix.lab.recipes.base import Recipe

_PAPERS = (csp, sliceformer, tost, dimension_mixer, sinkhorn)
_RECIPES: dict[str, Callable[[], Recipe]] = {
    name: make for paper in _PAPERS for name, make in paper.RECIPES.items()
}


def list_recipes() -> list[str]:
    """List the names of all recipes, PAPER/ENTRY, grouped by paper."""
    return list(_RECIPES)


def get_recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        InputError: the name is unknown; the message suggests the nearest name.
    """
    if not isinstance(name, str) or name not in _RECIPES:
        raise unknown_name("recipe", name, _RECIPES, "rifflemix list recipes")
    return _RECIPES[name]()
