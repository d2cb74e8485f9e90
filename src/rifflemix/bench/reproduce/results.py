"""results.json of a reproduction, and reading many of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rifflemix.bench.compare.results import protocol, train_curve
from rifflemix.bench.environment import environment
from rifflemix.bench.reproduce.utilisation import Utilisation
from rifflemix.errors import InputError
from rifflemix.recipes import Recipe
from rifflemix.tasks import Task
from rifflemix.train import TrainResult

FORMAT = "rifflemix.reproduce/1"


def results_of(
    recipe: Recipe,
    task: Task,
    seed: int,
    result: TrainResult,
    folder: Path,
    speed: Utilisation | None,
) -> dict[str, Any]:
    """The whole of results.json.

    "ours" is the test value of the weights that the validation split chose, in the unit of the
    printed number, and None until the run is finished. "difference" is ours minus the printed.
    """
    ours = None if result.test is None else recipe.shown(result.test[recipe.metric])
    chosen = None if result.best_value is None else recipe.shown(result.best_value)
    place = environment()
    is_known = ours is not None and recipe.printed is not None
    return {
        "format": FORMAT,
        "status": "complete" if result.finished else "partial",
        "recipe": recipe.to_dict(),
        "seed": seed,
        "printed": recipe.printed,
        "ours": ours,
        "difference": ours - recipe.printed if is_known else None,  # type: ignore[operator] # both are there
        "validation": chosen,
        "unit": recipe.unit,
        "steps": result.step,
        "steps_planned": recipe.steps_of_the_paper,
        "is_reduced": _is_reduced(recipe, result),
        "command": place["command"],
        "protocol": protocol(task),
        "task": {"name": task.name, "options": dict(task.options), "data": task.data_source},
        "parameters": result.parameters,
        "steps_per_second": result.steps_per_second,
        "tokens_per_second": result.tokens_per_second,
        "utilisation": None if speed is None else asdict(speed),
        "peak_memory_bytes": _peak_memory(result),
        "wall_seconds": result.seconds["total"],
        "seconds": result.seconds,
        "environment": place,
        "result": result.to_dict(),
        "train_curve": train_curve(folder / "log.jsonl"),
    }


def load_results(places: Iterable[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Every reproduction's results in files and, however deep, in folders; sorted by path.

    Raises:
        InputError: a place does not exist, or a file named is not a reproduction's.
    """
    found: dict[Path, dict[str, Any]] = {}
    for place in places:
        if place.is_dir():
            for path in sorted(place.rglob("*.json")):
                result = _read(path)
                if result is not None:
                    found[path] = result
        elif place.is_file():
            result = _read(place)
            if result is None:
                raise InputError(f"{place}: expected results of `rifflemix reproduce` in JSON")
            found[place] = result
        else:
            raise InputError(f"no results at {place}: expected a file or a folder")
    return sorted(found.items())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_ours = isinstance(value, dict) and value.get("format") == FORMAT
    return value if is_ours else None


def _is_reduced(recipe: Recipe, result: TrainResult) -> bool:
    return recipe.width != 1.0 or result.step < recipe.steps_of_the_paper


def _peak_memory(result: TrainResult) -> int | None:
    import resource
    import sys

    import torch

    if result.device.startswith("cuda"):
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
