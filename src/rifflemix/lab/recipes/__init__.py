"""Recipes: configurations that reproduce reported results of papers."""

from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.recipes.registry import (
    get_recipe,
    list_recipes,
    register_recipe,
    usable_recipes,
)

__all__ = ["Recipe", "get_recipe", "list_recipes", "register_recipe", "usable_recipes"]
