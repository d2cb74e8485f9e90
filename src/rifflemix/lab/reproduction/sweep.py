"""Run a recipe at every point of a grid of settings, once per seed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument, require_packages, unknown_name
from rifflemix.files import check_same_settings, write_bytes
from rifflemix.json_values import content_hash, encode
from rifflemix.lab.experiments import (
    ALONE,
    Caller,
    PlannedRun,
    Records,
    Role,
    RunRecord,
    RunStore,
    Trained,
    carry_out,
    newest_environment,
    write_summary,
)
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.plan import ReproducePlan, plan_reproduction
from rifflemix.lab.reproduction.records import RESULTS_FILE
from rifflemix.lab.reproduction.run import RecipeTrainer
from rifflemix.lab.reproduction.sweep_records import (
    FailedSweepRun,
    PointSummary,
    SweepResults,
    SweepRun,
    sweep_markdown,
)
from rifflemix.lab.runs.environment import stored_threads, this_environment, using_threads
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.options import ReproduceOptions, is_one_of_many
from rifflemix.lab.runs.status import (
    Grid,
    OnStatus,
    Point,
    ShouldStop,
    Summary,
    check_grid,
    grid_points,
    never,
    point_label,
    protocol,
    summarise,
)
from rifflemix.lab.tasks import Progress, Task, load_task
from rifflemix.lab.train import TrainConfig, TrainingDiverged
from rifflemix.lab.train.config import free_settings
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.run_folder import Metrics
from rifflemix.mixers.registry import mixer_options
from rifflemix.models import model_settings

SWEEP_FORMAT = "rifflemix.sweep/1"

_MOST_RUNS = 10_000
_INSIDE = "mixer_options."
# Other options set the length and the seed of a run.
_NOT_SWEPT = ("seed", "max_steps", "num_workers")
# Settings that are also options of all runs. A sweep accepts only one of both.
_EITHER = ("batch_size", "precision")


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that has passed all checks and can start.

    Attributes:
        recipe: recipe to vary.
        grid: setting -> values.
        seeds: every point runs with each.
        runs: point and plan of every run, seed by seed.
        out: results folder.
        settings: content of config.json.
    """

    recipe: Recipe
    grid: Grid
    seeds: Sequence[int]
    runs: Sequence[tuple[Point, ReproducePlan]]
    out: Path
    settings: Mapping[str, Any]

    @property
    def free(self) -> list[str]:
        """Settings that may change when the sweep continues."""
        return free_settings("train")

    def name(self, point: Point, plan: ReproducePlan) -> str:
        """Return the folder of a run below the sweep."""
        return f"{point_label(point)}/seed{plan.seed}"

    def planned(self, records: Records) -> list[PlannedRun]:
        """List the runs, seed by seed; none depends on another."""
        return [
            PlannedRun(self.name(point, of), self.recipe.name, of.seed, point)
            for point, of in self.runs
        ]


def sweep_defaults(recipe: Recipe) -> dict[str, Any]:
    """Return setting -> value of the recipe, for all settings that a sweep can vary.

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
    """Check everything without writing.

    Args:
        recipe: the row.
        grid: setting, as `sweep_defaults` names it -> values.
        seeds: every point runs with each.
        out: results folder, new, empty, or of an earlier start with the same settings.
        options: other differences from the recipe; the seed is replaced.
        progress: called with the progress of loading data.

    Raises:
        InputError: an unknown setting, a value that the model or the training refuses, missing
            data, or an `out` that cannot be used.
    """
    if is_one_of_many():
        raise InputError("sweep: expected one process, got several; run it without torchrun")
    require_packages("a sweep", "compare", "accelerate", "matplotlib", "msgspec")
    options = options or ReproduceOptions()
    options = replace(options, threads=options.threads or stored_threads(out))
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
    threads = options.threads or max(of.threads for _, of in runs)
    runs = [(point, replace(of, threads=threads)) for point, of in runs]
    settings = _settings(recipe, grid, seeds, runs[0][1])
    check_same_settings(out, settings, free=free_settings("train"))
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
    """Return the recipe at a point, without the reported value."""
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
    """Describe a sweep; a sweep with an equal description may resume."""
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
    plan: SweepPlan,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
    role: Role = ALONE,
) -> SweepResults:
    """Run or continue everything. Write results.json, table.md and plot.png after each run.

    Args:
        plan: a checked sweep.
        on_status: called at every step with the status of the current run.
        should_stop: polled at every step.
        role: role of this process among those that share the runs.

    Returns:
        The content of results.json; its status is "partial" after a stop.

    Raises:
        InputError: the folder cannot be written.
    """
    plans = {plan.name(point, of): of for point, of in plan.runs}
    first = plan.runs[0][1]
    trainer = _SweepTrainer(lambda run: plans[run.name], on_status)
    engine = Engine(first.recipe.train, first.device)

    def save(records: Records) -> SweepResults:
        return _write(plan, _results(plan, records))

    with using_threads(first.threads):
        caller = Caller(should_stop or never, save, role=role)
        return save(carry_out(plan, trainer, engine, caller).records)


def collect_sweep(plan: SweepPlan) -> SweepResults:
    """Write the results of the runs that workers have finished.

    Returns:
        The content of results.json.

    Raises:
        InputError: the folder cannot be written.
    """
    store = RunStore(plan)
    results = _results(plan, store.records())
    store.tidy()
    return _write(plan, results)


class _SweepTrainer(RecipeTrainer):
    """Records runs that diverge: they are results of a sweep."""

    def train(
        self, run: PlannedRun, folder: Path, records: Records, should_stop: ShouldStop
    ) -> Trained:
        start = time.perf_counter()
        try:
            return super().train(run, folder, records, should_stop)
        except TrainingDiverged as error:
            seconds = time.perf_counter() - start
            return Trained(result=None, error=error.reason, wall_seconds=seconds)


def _write(plan: SweepPlan, results: SweepResults) -> SweepResults:
    from rifflemix.lab.reproduction.sweep_plot import sweep_plot

    write_summary(plan.out / RESULTS_FILE, encode(results))
    write_bytes(plan.out / "table.md", sweep_markdown(results).encode())
    write_bytes(plan.out / "plot.png", sweep_plot(results))
    return results


def _results(plan: SweepPlan, records: Records) -> SweepResults:
    found = [records[run.name] for run in plan.planned(records) if run.name in records]
    runs = [_finished(record) for record in found if record.error is None]
    failed = [_failed(record) for record in found if record.error is not None]
    here = newest_environment(records) or this_environment()
    done, recipe = len(runs) + len(failed), plan.recipe
    results = SweepResults(
        format=SWEEP_FORMAT,
        status="complete" if done == len(plan.runs) else "partial",
        runs_done=done,
        runs_planned=len(plan.runs),
        command=here.command,
        config=dict(plan.settings),
        recipe=recipe,
        metric=recipe.metric,
        unit=recipe.unit,
        steps=plan.runs[0][1].recipe.train.max_steps,
        steps_of_the_paper=recipe.steps_of_the_paper,
        protocol=protocol(plan.runs[0][1].task, recipe.weights),
        environment=here,
        wall_seconds=_seconds(runs, failed),
        points=[_point(recipe, point, runs, failed) for point in grid_points(plan.grid)],
        runs=runs,
        failed_runs=failed,
    )
    return replace(results, sha256=content_hash(encode(results)))


def _finished(record: RunRecord) -> SweepRun:
    result = record.trained
    return SweepRun(
        settings=record.settings,
        seed=record.seed,
        folder=record.name,
        steps=result.step,
        best_step=result.best_step,
        parameters=result.parameters,
        steps_per_second=result.steps_per_second,
        wall_seconds=record.wall_seconds,
        validation=record.chosen_validation(),
        test=result.test,
        validation_curve=result.validation,
    )


def _failed(record: RunRecord) -> FailedSweepRun:
    return FailedSweepRun(
        settings=record.settings,
        seed=record.seed,
        folder=record.name,
        error=str(record.error),
        wall_seconds=record.wall_seconds,
    )


def _seconds(runs: Sequence[SweepRun], failed: Sequence[FailedSweepRun]) -> float:
    return math.fsum([*(r.wall_seconds for r in runs), *(r.wall_seconds for r in failed)])


def _point(
    recipe: Recipe, point: Point, runs: Sequence[SweepRun], failed: Sequence[FailedSweepRun]
) -> PointSummary:
    """Summarize a point over its seeds."""
    own = [run for run in runs if run.settings == point]
    broken = [run for run in failed if run.settings == point]

    def summary(found: Sequence[Metrics]) -> Summary | None:
        name = recipe.metric
        return summarise([recipe.shown(metrics[name]) for metrics in found if name in metrics])

    return PointSummary(
        settings=point,
        test=summary([run.test or {} for run in own]),
        validation=summary([run.validation for run in own]),
        diverged=len(broken),
        parameters=own[0].parameters if own else None,
        wall_seconds=_seconds(own, broken),
    )
