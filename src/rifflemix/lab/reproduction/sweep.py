"""A recipe at every point of a grid of settings: one run a point and seed, and nothing chosen."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument, require_packages, unknown_name
from rifflemix.files import check_same_settings, claimed_folder, write_bytes, write_json
from rifflemix.json_values import sealed
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.results import RESULTS_FILE
from rifflemix.lab.reproduction.run import ReproducePlan, plan_reproduction, train_plan
from rifflemix.lab.reproduction.sweep_table import sweep_markdown
from rifflemix.lab.runs.device import using_threads
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.grid import Grid, Point, check_grid, grid_points, point_label
from rifflemix.lab.runs.options import ReproduceOptions
from rifflemix.lab.runs.processes import is_one_of_many
from rifflemix.lab.runs.results import protocol, stored_results, summarise
from rifflemix.lab.runs.status import OnStatus, ShouldStop, silent
from rifflemix.lab.tasks import Progress, Task, load_task
from rifflemix.lab.train import TrainConfig, TrainingDiverged, TrainResult
from rifflemix.lab.train.config import free_settings
from rifflemix.mixers.named import mixer_options
from rifflemix.models import model_settings

SWEEP_FORMAT = "rifflemix.sweep/1"

_MOST_RUNS = 10_000
_INSIDE = "mixer_options."
# A run's length and seed have options of their own.
_NOT_SWEPT = ("seed", "max_steps", "num_workers")
_FREE = free_settings("train")
# What an option of all runs says too, and then no point.
_EITHER = ("batch_size", "precision")


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that has passed all checks and can start.

    Attributes:
        recipe: what is varied.
        grid: setting -> values.
        seeds: every point runs with each.
        runs: settings and plan of every run, seed by seed.
        out: results folder.
        settings: what config.json holds.
    """

    recipe: Recipe
    grid: Grid
    seeds: Sequence[int]
    runs: Sequence[tuple[Point, ReproducePlan]]
    out: Path
    settings: Mapping[str, Any]


def sweep_defaults(recipe: Recipe) -> dict[str, Any]:
    """Every setting that a sweep of a recipe can vary, with the recipe's own value.

    These are the settings of its model (`num_heads`), of its mixer (`mixer_options.temperature`)
    and of its training (`lr`).
    """
    train = recipe.train.to_dict()
    values = {f.name: train[f.name] for f in fields(TrainConfig) if f.name not in _NOT_SWEPT}
    model = model_settings(recipe.model) | dict(recipe.model_settings)
    values |= model
    if isinstance(model.get("mixer"), str) and "mixer_options" in model:
        options = mixer_options(model["mixer"]) | dict(model["mixer_options"] or {})
        values |= {f"{_INSIDE}{name}": value for name, value in options.items()}
    return values


def plan_sweep(
    recipe: Recipe,
    grid: Grid,
    seeds: Sequence[int],
    out: Path,
    options: ReproduceOptions | None = None,
    *,
    progress: Progress | None = None,
) -> SweepPlan:
    """Check everything; write nothing.

    Args:
        recipe: the row.
        grid: setting, as `sweep_defaults` names it -> values.
        seeds: every point runs with each.
        out: results folder, new, empty, or of an earlier start with the same settings.
        options: what else differs from the recipe; its seed is replaced.
        progress: called with the progress of loading data.

    Raises:
        InputError: an unknown setting, a value that the model or the training refuses, missing
            data, or an `out` that cannot be used.
    """
    if is_one_of_many():
        raise InputError("sweep: expected one process, got several; run it without torchrun")
    require_packages("a sweep", "compare", "accelerate", "matplotlib")
    options = options or ReproduceOptions()
    known = sweep_defaults(recipe)
    for name in grid:
        if name not in known:
            raise unknown_name(f"setting of {recipe.name}", name, known)
    if not grid:
        raise bad_argument("set", "at least one setting", "none")
    check_grid(grid)
    for name in _EITHER:
        if name in grid and getattr(options, name) is not None:
            raise InputError(f"set: {name} is given twice, as an option of all runs too; say one")
    check_folder(out)
    points = grid_points(grid)
    if len(points) * len(seeds) > _MOST_RUNS:
        got = f"{len(points):,} combinations and {len(seeds):,} seeds"
        raise bad_argument("set and seeds", f"at most {_MOST_RUNS:,} runs", got)
    task = load_task(
        recipe.task, data_dir=options.data_dir, progress=progress, **recipe.task_options
    )
    runs = [
        (point, _planned(recipe, point, seed, out, options, task))
        for seed in seeds
        for point in points
    ]
    settings = _settings(recipe, grid, seeds, runs[0][1])
    check_same_settings(out, settings, free=_FREE)
    return SweepPlan(recipe, grid, seeds, runs, out, settings)


def _planned(
    recipe: Recipe, point: Point, seed: int, out: Path, options: ReproduceOptions, task: Task
) -> ReproducePlan:
    folder = out / point_label(point) / f"seed{seed}"
    try:
        return plan_reproduction(
            recipe,
            folder,
            replace(options, seed=seed),
            task=task,
            vary=lambda changed: _varied(changed, point),
        )
    except InputError as error:
        raise InputError(f"at {point_label(point)}: {error}") from error


def _varied(recipe: Recipe, point: Point) -> Recipe:
    """The recipe at a point; it is no longer the row that the paper prints."""
    model, train = dict(recipe.model_settings), {}
    inside = dict(model.get("mixer_options") or {})
    known = model_settings(recipe.model)
    for name, value in point.items():
        if name.startswith(_INSIDE):
            inside[name.removeprefix(_INSIDE)] = value
            model["mixer_options"] = inside
        elif name in known:
            model[name] = value
        else:
            train[name] = value
    varied = recipe.train
    if "batch_size" in train:
        varied = varied.with_batch_size(train.pop("batch_size"))
    return replace(recipe, model_settings=model, train=replace(varied, **train))


def _settings(
    recipe: Recipe, grid: Grid, seeds: Sequence[int], plan: ReproducePlan
) -> dict[str, Any]:
    """What a sweep is: equal means that it may go on."""
    train = plan.recipe.train.to_dict()
    return {
        "format": SWEEP_FORMAT,
        "recipe": recipe.name,
        "grid": {name: list(values) for name, values in grid.items()},
        "seeds": list(seeds),
        "width": plan.recipe.width,
        "train": {k: v for k, v in train.items() if k not in grid and k != "seed"},
        "device": plan.device,
        "threads": plan.threads,
        "data": plan.task.fingerprint(),
    }


def run_sweep(
    plan: SweepPlan, *, on_status: OnStatus | None = None, should_stop: ShouldStop | None = None
) -> dict[str, Any]:
    """Make all runs, or go on; results.json, table.md and plot.png are written after each.

    Args:
        plan: a checked sweep.
        on_status: told where the current run stands, at every step.
        should_stop: polled at every step.

    Returns:
        What results.json holds: "status" is "complete", or "partial" after a stop.

    Raises:
        InputError: the folder cannot be written or is in use.
    """
    say = on_status or silent
    runs: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    with (
        claimed_folder(plan.out, plan.settings, free=_FREE),
        using_threads(plan.runs[0][1].threads),
    ):
        stored = stored_results(plan.out / RESULTS_FILE)
        broken = {run["folder"]: run for run in stored.get("failed_runs", ())}
        for point, of in plan.runs:
            label = point_label(point)
            started = time.perf_counter()
            entry = {
                "settings": point,
                "seed": of.seed,
                "folder": of.out.relative_to(plan.out).as_posix(),
            }
            if entry["folder"] in broken:  # it would diverge again
                failed.append(broken[entry["folder"]])
                continue
            try:
                result = train_plan(
                    of,
                    on_status=lambda status, label=label: say(replace(status, trial=label)),  # type: ignore[misc] # bound now, not when it is called
                    should_stop=should_stop,
                )
            except TrainingDiverged as error:
                spent = time.perf_counter() - started
                failed.append(entry | {"error": error.reason, "wall_seconds": spent})
            else:
                if not result.finished:
                    break
                runs.append(entry | _entry(result))
            if not _has_all(stored, runs, failed):
                _write(plan, _results(plan, runs, failed))
        if _has_all(stored, runs, failed) and stored["runs_done"] == len(runs) + len(failed):
            return _write(plan, stored)  # of the process that trained: this one has done nothing
        return _write(plan, _results(plan, runs, failed))


def _has_all(
    stored: Mapping[str, Any], runs: Sequence[dict[str, Any]], failed: Sequence[dict[str, Any]]
) -> bool:
    """Whether results of an earlier process hold these runs."""
    return bool(
        stored
        and all(run in stored["runs"] for run in runs)
        and all(run in stored["failed_runs"] for run in failed)
    )


def _entry(result: TrainResult) -> dict[str, Any]:
    chosen = next((at for at in result.validation if at["step"] == result.best_step), {})
    return {
        "steps": result.step,
        "best_step": result.best_step,
        "parameters": result.parameters,
        "steps_per_second": result.steps_per_second,
        "wall_seconds": result.seconds["total"],
        "validation": chosen,
        "test": result.test,
        "validation_curve": result.validation,
    }


def _write(plan: SweepPlan, results: dict[str, Any]) -> dict[str, Any]:
    from rifflemix.lab.reproduction.sweep_plot import sweep_plot

    write_json(plan.out / RESULTS_FILE, results)
    write_bytes(plan.out / "table.md", sweep_markdown(results).encode())
    write_bytes(plan.out / "plot.png", sweep_plot(results))
    return results


def _results(
    plan: SweepPlan, runs: Sequence[dict[str, Any]], failed: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    here, task = environment(), plan.runs[0][1].task
    done = len(runs) + len(failed)
    results = {
        "format": SWEEP_FORMAT,
        "status": "complete" if done == len(plan.runs) else "partial",
        "runs_done": done,
        "runs_planned": len(plan.runs),
        "command": here["command"],
        "config": dict(plan.settings),
        "recipe": plan.recipe.to_dict(),
        "metric": plan.recipe.metric,
        "unit": plan.recipe.unit,
        "steps": plan.runs[0][1].recipe.train.max_steps,
        "steps_of_the_paper": plan.recipe.steps_of_the_paper,
        "protocol": protocol(task, plan.recipe.weights),
        "environment": here,
        "wall_seconds": math.fsum(run["wall_seconds"] for run in (*runs, *failed)),
        "points": [_point(plan, point, runs, failed) for point in grid_points(plan.grid)],
        "runs": list(runs),
        "failed_runs": list(failed),
    }
    return sealed(results)


def _point(
    plan: SweepPlan,
    point: Point,
    runs: Sequence[Mapping[str, Any]],
    failed: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The summary of a point over its seeds."""
    metric = plan.recipe.metric
    own = [run for run in runs if run["settings"] == point]
    broken = [run for run in failed if run["settings"] == point]
    shown = {
        split: [run[split][metric] for run in own if metric in run[split]]
        for split in ("test", "validation")
    }
    return {
        "settings": point,
        **{
            split: summarise([plan.recipe.shown(value) for value in values])
            for split, values in shown.items()
        },
        "diverged": len(broken),
        "parameters": own[0]["parameters"] if own else None,
        "wall_seconds": math.fsum(run["wall_seconds"] for run in (*own, *broken)),
    }
