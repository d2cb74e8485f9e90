"""Count the training steps of all recipes, which `rifflemix list recipes --cost` shows.

After adding a recipe or changing its settings: a second for each that is new. After changing what a
mixer, a model or an optimiser computes, with parts of the names of the rows that it is in, which
are counted anew; `/` is in all, which takes long.

    python docs/write_costs.py
    python docs/write_costs.py sinkhorn/ -butterfly
"""

from __future__ import annotations

import sys

from rifflemix.lab.recipes import get_recipe, list_recipes
from rifflemix.lab.reproduction.cost import count_step
from rifflemix.lab.reproduction.kept_costs import FILE, StepCost, read_costs, work, write_costs
from rifflemix.ops import native


def counted(kept: dict[str, StepCost], anew: list[str]) -> dict[str, StepCost]:
    """Costs of all recipes: those that are kept, and counted now the new ones and those named."""
    costs: dict[str, StepCost] = {}
    for recipe in map(get_recipe, list_recipes()):
        name = work(recipe)
        is_named = any(part in recipe.name for part in anew)
        if name not in costs:
            costs[name] = count_step(recipe) if is_named or name not in kept else kept[name]
    return costs


if __name__ == "__main__":
    if native.library() is None:
        sys.exit("the costs are those of the compiled kernels, which `rifflemix doctor` misses")
    write_costs(FILE, counted(read_costs(FILE), sys.argv[1:]))
