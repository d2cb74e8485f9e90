"""The papers' rows as configurations."""

from rifflemix.recipes.base import Recipe
from rifflemix.recipes.registry import get_recipe, list_recipes

__all__ = ["Recipe", "get_recipe", "list_recipes"]
