"""Trainings that claims need: rows of a table, each with several seeds, at a reduced size.

`docs/run_claims.py` calls `train`. It uses the recipes and the training of `rifflemix reproduce`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from claims_base import Runs
from matplotlib.figure import Figure

from rifflemix.cli.data import DataProgress
from rifflemix.cli.interrupt import StopRequest
from rifflemix.cli.output import progress_console
from rifflemix.errors import RunFailed
from rifflemix.lab.analysis.drawing import legend, line_style, new_figure, tidy
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.lab.report.live import live_progress
from rifflemix.lab.reproduction import ReproduceOptions, plan_reproduction, run_reproduction
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.train import TrainingDiverged


@dataclass(frozen=True)
class Row:
    """Results of one row.

    Attributes:
        recipe: name of the recipe.
        printed: value that the paper prints; None if it prints none.
        unit: unit of all values; "%" or the name of the metric.
        parameters: trainable parameters at this size.
        test, validation: seed -> value of the weights that the validation split chose.
        curves: seed -> (step, validation value) pairs.
        diverged: seeds of runs that diverged; they have no values.
        wall_seconds: time of the finished runs.
    """

    recipe: str
    printed: float | None
    unit: str
    parameters: int
    test: Mapping[str, float]
    validation: Mapping[str, float]
    curves: Mapping[str, Sequence[tuple[int, float]]]
    diverged: Sequence[int]
    wall_seconds: float


def train(runs: Runs, out: Path, data_dir: Path) -> dict[str, Any] | None:
    """Train every row with every seed, or continue.

    Args:
        runs: the rows.
        out: folder of all runs; finished runs in it are kept.
        data_dir: folder of data files.

    Returns:
        The content of the result file, or None after Ctrl-C.

    Raises:
        RunFailed: all runs diverged.
    """
    recipes = {row: get_recipe(name) for row, name in runs.rows.items()}
    live = live_progress(progress_console(), {r.name: r.row for r in recipes.values()}, runs.seeds)
    results: dict[str, list[dict[str, Any]]] = {row: [] for row in recipes}
    diverged: dict[str, list[int]] = {row: [] for row in recipes}
    parameters: dict[str, int] = {}
    with live, StopRequest(live.note) as stop:
        for row, recipe, seed, task in _in_order(runs, recipes, data_dir):
            options = ReproduceOptions(
                data_dir=data_dir,
                max_steps=runs.steps,
                scale=runs.scale,
                batch_size=runs.batch_size,
                seed=seed,
                device="cpu",
                threads=1,
            )
            plan = plan_reproduction(recipe, out / row / f"seed{seed}", options, task=task)
            parameters[row] = plan.parameters
            try:
                result = run_reproduction(plan, on_status=live.update, should_stop=stop)
            except TrainingDiverged as error:
                live.note(f"{row}, seed {seed}: {error.reason}")
                diverged[row].append(seed)
                continue
            if result["status"] != "complete":
                return None
            results[row].append(result)
    rows = {
        row: _row(recipe, results[row], diverged[row], parameters[row])
        for row, recipe in recipes.items()
    }
    finished = [result for of in results.values() for result in of]
    if not finished:
        raise RunFailed(f"{runs.name}: expected a finished run, got diverged runs only")
    return _stored(runs, rows, finished[0])


def _in_order(
    runs: Runs, recipes: Mapping[str, Recipe], data_dir: Path
) -> Iterator[tuple[str, Recipe, int, Task]]:
    """Yield seed by seed, so that a stopped start has compared all rows with its first seeds."""
    tasks: dict[str, Task] = {}
    with DataProgress(progress_console()) as progress:
        for recipe in recipes.values():
            key = repr((recipe.task, sorted(recipe.task_options.items())))
            if key not in tasks:
                tasks[key] = load_task(
                    recipe.task, data_dir=data_dir, progress=progress, **recipe.task_options
                )
    for seed in runs.seeds:
        for row, recipe in recipes.items():
            key = repr((recipe.task, sorted(recipe.task_options.items())))
            yield row, recipe, seed, tasks[key]


def _stored(runs: Runs, rows: Mapping[str, Row], first: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": runs.title,
        "caption": _CAPTION,
        "data": {
            "size": {
                "steps": runs.steps,
                "steps_of_the_paper": first["steps_planned"],
                "scale": runs.scale,
                "batch_size": runs.batch_size,
                "batch_size_of_the_paper": first["batch_size_planned"],
                "seeds": list(runs.seeds),
                "test_samples": first["task"]["sizes"]["test"],
            },
            "rows": {name: asdict(row) for name, row in rows.items()},
        },
    }


_CAPTION = (
    "Left: test value of each row; one circle per seed, the line is their mean. Right: validation "
    "value over training, mean over seeds."
)


def _row(
    recipe: Recipe, results: Sequence[Mapping[str, Any]], diverged: Sequence[int], parameters: int
) -> Row:
    return Row(
        recipe.name,
        recipe.printed,
        recipe.unit,
        parameters,
        {str(of["seed"]): of["ours"] for of in results},
        {str(of["seed"]): of["validation"] for of in results},
        {
            str(of["seed"]): [
                (at["step"], recipe.shown(at[recipe.metric])) for at in of["result"]["validation"]
            ]
            for of in results
        },
        diverged,
        sum(of["wall_seconds"] for of in results),
    )


def draw(stored: Mapping[str, Any]) -> Figure:
    """Draw the test values of all rows and their validation curves."""
    rows = stored["data"]["rows"]
    unit = next(iter(rows.values()))["unit"]
    figure = new_figure(1.6 + 0.35 * max(len(rows), 6))
    left, right = figure.subplots(1, 2)
    for number, (name, row) in enumerate(rows.items()):
        style = line_style(number)
        values = list(row["test"].values())
        if not values:
            continue
        left.plot(values, [number] * len(values), "o", color=style["color"], alpha=0.6)
        left.plot([np.mean(values)] * 2, [number - 0.3, number + 0.3], color=style["color"])
        curves = [np.array(curve) for curve in row["curves"].values()]
        right.plot(curves[0][:, 0], np.mean([of[:, 1] for of in curves], 0), label=name, **style)
    left.set_yticks(range(len(rows)), list(rows))
    left.invert_yaxis()
    word = "accuracy, %" if unit == "%" else unit
    tidy(left, title="test", x=word)
    tidy(right, title="validation", x="optimizer steps", y=word)
    legend(right)
    return figure
