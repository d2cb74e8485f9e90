"""Trainings that claims need: rows of a table, each with several seeds, at a reduced size.

`run_claims.py` calls `train`. It uses the recipes and the training of `rifflemix reproduce`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from claims.base import Runs
from claims.files import UNFINISHED, keep, stored

from rifflemix.cli.data import DataProgress
from rifflemix.cli.interrupt import StopRequest
from rifflemix.cli.output import progress_console
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
        The content of the result file, or None after Ctrl-C.

    Raises:
        RunFailed: all runs diverged.
    """
    recipes = {row: get_recipe(name) for row, name in runs.rows.items()}
    found, tasks = _finished(runs), dict[str, Task]()
    missing = [(seed, row) for seed in runs.seeds for row in recipes if (row, seed) not in found]
    shared = ReproduceOptions(
        data_dir=data_dir,
        max_steps=runs.steps,
        scale=runs.scale,
        batch_size=runs.batch_size,
        device="cpu",
        threads=1,
    )
    live = live_progress(progress_console(), {r.name: r.row for r in recipes.values()}, runs.seeds)
    with live, StopRequest(live.note) as stop:
        for seed, row in missing:
            recipe, options = recipes[row], replace(shared, seed=seed)
            key = repr((recipe.task, sorted(recipe.task_options.items())))
            if key not in tasks:
                tasks[key] = _load_task(recipe, data_dir)
            folder = out / row / f"seed{seed}"
            plan = plan_reproduction(recipe, folder, options, task=tasks[key])
            try:
                result = run_reproduction(plan, on_status=live.update, should_stop=stop)
            except TrainingDiverged as error:
                live.note(f"{row}, seed {seed}: {error.reason}")
                found[row, seed] = _Run(row, seed, plan.parameters)
            else:
                if result.status != "complete":
                    return None
                found[row, seed] = _run(recipe, row, result)
            kept = {"size": _size(runs), "runs": [asdict(run) for run in found.values()]}
            keep(runs.name + UNFINISHED, {"environment": environment(), **kept})
    if all(run.test is None for run in found.values()):
        raise RunFailed(f"{runs.name}: expected a finished run, got diverged runs only")
    return _stored(runs, recipes, found)


@dataclass(frozen=True)
class _Run:
    """A finished run. A run that diverged has no values.

    Attributes:
        row, seed: the run.
        parameters: trainable parameters at this size.
        test, validation: values of the weights that the validation split chose.
        curve: (step, validation value) pairs.
        wall_seconds: training time.
        steps_of_the_paper, batch_size_of_the_paper: sizes of the recipe.
        test_samples: size of the test split.
    """

    row: str
    seed: int
    parameters: int
    test: float | None = None
    validation: float | None = None
    curve: Sequence[tuple[int, float]] = ()
    wall_seconds: float = 0.0
    steps_of_the_paper: int = 0
    batch_size_of_the_paper: int = 0
    test_samples: int = 0


def _run(recipe: Recipe, row: str, found: Reproduction) -> _Run:
    assert found.task.sizes is not None
    assert found.batch_size_planned is not None
    return _Run(
        row=row,
        seed=found.seed,
        parameters=found.parameters,
        test=found.ours,
        validation=found.validation,
        curve=[(p["step"], recipe.shown(p[recipe.metric])) for p in found.result.validation],
        wall_seconds=found.wall_seconds,
        steps_of_the_paper=found.steps_planned,
        batch_size_of_the_paper=found.batch_size_planned,
        test_samples=found.task.sizes["test"],
    )


def _load_task(recipe: Recipe, data_dir: Path) -> Task:
    with DataProgress(progress_console()) as progress:
        return load_task(recipe.task, data_dir=data_dir, progress=progress, **recipe.task_options)


def _finished(runs: Runs) -> dict[tuple[str, int], _Run]:
    """Read the finished runs of unfinished evidence, if they have the size of `runs`."""
    kept = stored(runs.name + UNFINISHED)
    if kept is None or kept["size"] != _size(runs):
        return {}
    found = [_Run(**run) for run in kept["runs"]]
    return {(run.row, run.seed): run for run in found if run.row in runs.rows}


def _size(runs: Runs) -> dict[str, Any]:
    return {"steps": runs.steps, "scale": runs.scale, "batch_size": runs.batch_size}


def _stored(
    runs: Runs, recipes: Mapping[str, Recipe], found: Mapping[tuple[str, int], _Run]
) -> dict[str, Any]:
    first = next(run for run in found.values() if run.test is not None)
    size = _size(runs) | {
        "steps_of_the_paper": first.steps_of_the_paper,
        "batch_size_of_the_paper": first.batch_size_of_the_paper,
        "seeds": list(runs.seeds),
        "test_samples": first.test_samples,
    }
    rows = {
        row: _row(recipe, [found[row, seed] for seed in runs.seeds])
        for row, recipe in recipes.items()
    }
    return {"title": runs.title, "caption": _CAPTION, "data": {"size": size, "rows": rows}}


_CAPTION = (
    "Left: test value of each row; one circle per seed, the line is their mean. Right: validation "
    "value over training, mean over seeds."
)


def _row(recipe: Recipe, runs: Sequence[_Run]) -> dict[str, Any]:
    """Collect the results of one row by seed; runs that diverged have no values."""
    trained = [run for run in runs if run.test is not None]
    return {
        "recipe": recipe.name,
        "printed": recipe.printed,
        "unit": recipe.unit,
        "parameters": runs[0].parameters,
        "test": {str(run.seed): run.test for run in trained},
        "validation": {str(run.seed): run.validation for run in trained},
        "curves": {str(run.seed): run.curve for run in trained},
        "diverged": [run.seed for run in runs if run.test is None],
        "wall_seconds": sum(run.wall_seconds for run in trained),
    }
