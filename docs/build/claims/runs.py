"""Trainings that claims need: rows of a table, each with several seeds, at a reduced size.

`run_claims.py` calls `train`. It uses the recipes and the training of `rifflemix reproduce`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from claims.base import UNFINISHED, Runs, keep, stored

from rifflemix.cli.output import DataProgress, StopRequest, progress_console
from rifflemix.errors import RunFailed
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.lab.report.live import live_progress
from rifflemix.lab.reproduction import (
    ReproduceOptions,
    Reproduction,
    plan_reproduction,
    run_reproduction,
)
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.train import TrainingDiverged


def train(runs: Runs, out: Path, data_dir: Path) -> dict[str, Any] | None:
    """Train every row with every seed, or continue.

    Each finished run is stored at once, so that another checkout trains only the rest.

    Args:
        runs: the rows.
        out: folder of unfinished runs.
        data_dir: folder of data files.

    Returns:
        The measurement, or None after Ctrl-C.

    Raises:
        RunFailed: all runs diverged.
    """
    recipes = {row: get_recipe(name) for row, name in runs.rows.items()}
    data, tasks = _begun(runs, recipes), dict[str, Task]()
    shared = ReproduceOptions(
        data_dir=data_dir, max_steps=runs.steps, scale=runs.scale, batch_size=runs.batch_size,
        device="cpu", threads=1,
    )  # fmt: skip
    live = live_progress(progress_console(), {r.name: r.row for r in recipes.values()}, runs.seeds)
    with live, StopRequest(live.note) as stop:
        for seed, row in product(runs.seeds, recipes):
            recipe, found = recipes[row], data["rows"][row]
            if str(seed) in found["test"] or seed in found["diverged"]:
                continue
            key = repr((recipe.task, sorted(recipe.task_options.items())))
            if key not in tasks:
                tasks[key] = _load_task(recipe, data_dir)
            folder, options = out / row / f"seed{seed}", replace(shared, seed=seed)
            plan = plan_reproduction(recipe, folder, options, task=tasks[key])
            found["parameters"] = plan.parameters
            try:
                result = run_reproduction(plan, on_status=live.update, should_stop=stop)
            except TrainingDiverged as error:
                live.note(f"{row}, seed {seed}: {error.reason}")
                found["diverged"].append(seed)
            else:
                if result.status != "complete":
                    return None
                _add(data, row, recipe, result)
            keep(runs.name + UNFINISHED, {"environment": environment(), "data": data})
    if not any(found["test"] for found in data["rows"].values()):
        raise RunFailed(f"{runs.name}: expected a finished run, got diverged runs only")
    return {"data": data}


def _load_task(recipe: Recipe, data_dir: Path) -> Task:
    with DataProgress(progress_console()) as progress:
        return load_task(recipe.task, data_dir=data_dir, progress=progress, **recipe.task_options)


def _begun(runs: Runs, recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    """Return the data with the finished runs of the same size, or without runs."""
    size = {"steps": runs.steps, "scale": runs.scale, "batch_size": runs.batch_size}
    kept = stored(runs.name + UNFINISHED)
    if kept is not None and size.items() <= kept["data"]["size"].items():
        return copy.deepcopy(kept["data"])
    by_seed: dict[str, Any] = {"test": {}, "validation": {}, "curves": {}, "diverged": []}
    rows = {
        row: {
            "recipe": recipe.name, "printed": recipe.printed, "unit": recipe.unit,
            **copy.deepcopy(by_seed), "wall_seconds": 0.0,
        }
        for row, recipe in recipes.items()
    }  # fmt: skip
    return {"size": size | {"seeds": list(runs.seeds)}, "rows": rows}


def _add(data: dict[str, Any], row: str, recipe: Recipe, run: Reproduction) -> None:
    """Add a finished run to its row, and the sizes of the paper's run."""
    assert run.task.sizes is not None
    found, seed = data["rows"][row], str(run.seed)
    found["test"][seed] = run.ours
    found["validation"][seed] = run.validation
    points = run.result.validation
    found["curves"][seed] = [(p["step"], recipe.shown(p[recipe.metric])) for p in points]
    found["wall_seconds"] += run.wall_seconds
    data["size"] |= {
        "steps_of_the_paper": run.steps_planned,
        "batch_size_of_the_paper": run.batch_size_planned,
        "test_samples": run.task.sizes["test"],
    }
