"""Count the training steps of all recipes, for `rifflemix list recipes --cost`.

    python docs/build/build.py costs                         count new and changed recipes
    python docs/build/build.py costs sinkhorn/ -butterfly    also count these recipes again

Name the recipes of a mixer, model or optimizer after a change of its computation. The name `/` is
in all recipes and needs many minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from rifflemix.errors import InputError
from rifflemix.lab.recipes import get_recipe, list_recipes
from rifflemix.lab.reproduction.cost import (
    FILE,
    StepCost,
    count_step,
    read_costs,
    work,
    write_costs,
)
from rifflemix.ops import native


def counted(kept: dict[str, StepCost], again: Sequence[str]) -> dict[str, StepCost]:
    """Return the costs of all recipes; count new recipes and those with a name in `again`."""
    costs: dict[str, StepCost] = {}
    for recipe in map(get_recipe, list_recipes()):
        name = work(recipe)
        is_named = any(part in recipe.name for part in again)
        if name not in costs:
            costs[name] = count_step(recipe) if is_named or name not in kept else kept[name]
    return costs


def main(again: Sequence[str]) -> None:
    """Write the costs."""
    if native.library() is None:
        raise InputError("costs: expected the compiled kernels, got none. Run `rifflemix doctor`.")
    write_costs(FILE, counted(read_costs(FILE), again))
