"""Running a reproduction: check, train or resume, write results.json."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import torch

from rifflemix.checks import check_integer
from rifflemix.errors import check_choice
from rifflemix.files import read_text, write_json
from rifflemix.json_values import check_json, check_seal, parse_json, sealed
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.checks import check_results
from rifflemix.lab.reproduction.results import (
    RESULTS_FILE,
    forget_memory,
    process_memory,
    results_of,
)
from rifflemix.lab.reproduction.start import Start, read_start, start_model
from rifflemix.lab.reproduction.utilisation import Utilisation, utilisation
from rifflemix.lab.runs.device import check_device, resolve_device, using_threads
from rifflemix.lab.runs.fit import check_batch_size, fit_model, try_out
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.options import MOST_THREADS, PRECISIONS, ReproduceOptions
from rifflemix.lab.runs.processes import count_processes, is_main_process
from rifflemix.lab.runs.split import check_processes, check_split, split_model
from rifflemix.lab.runs.status import OnStatus, ShouldStop, StatusFeed
from rifflemix.lab.tasks import Progress, Task, load_task
from rifflemix.lab.train import TrainResult, train
from rifflemix.lab.train.engine import Engine, check_batch
from rifflemix.lab.train.run_folder import Weights
from rifflemix.lab.train.targets import check_targets
from rifflemix.models import Model


@dataclass(frozen=True)
class ReproducePlan:
    """A recipe that has passed all checks and can start.

    Attributes:
        recipe: what to run, shortened and scaled as asked.
        task: the loaded data.
        out: the run's folder; not made yet where this is the first start.
        seed: of the weights, the data order and the noise.
        device: "cpu", "cuda", "cuda:1" ...
        threads: CPU threads.
        parameters: trainable parameters of the model.
        batch_size_planned: the recipe's own samples per update.
        start: another run's weights, from which this one starts; None: its own.
        keep_weights: also keep the weights of every evaluation.
        context_parallel: processes of torchrun that share each sequence.
    """

    recipe: Recipe
    task: Task
    out: Path
    seed: int
    device: str
    threads: int
    parameters: int
    batch_size_planned: int
    start: Start | None = None
    keep_weights: bool = False
    context_parallel: int = 1


def plan_reproduction(
    recipe: Recipe,
    out: Path,
    options: ReproduceOptions | None = None,
    *,
    task: Task | None = None,
    vary: Callable[[Recipe], Recipe] | None = None,
    progress: Progress | None = None,
) -> ReproducePlan:
    """Check everything; write nothing.

    Args:
        recipe: the row.
        out: the run's folder, new, empty, or of an earlier start with the same settings.
        options: what differs from the recipe, and where to run it.
        task: the data, where it is loaded already.
        vary: changes the recipe that has the options in it.
        progress: called with the progress of loading data; see `rifflemix.lab.tasks.Progress`.

    Raises:
        PreparationStopped: `progress` returned True.
        InputError: data is missing, the model cannot be built, started from those weights or
            split over processes as asked, or `out` cannot be used.
    """
    options = options or ReproduceOptions()
    check_processes(options.context_parallel)
    check_folder(out)
    device = resolve_device(options.device)
    check_device(device)
    threads = torch.get_num_threads() if options.threads is None else options.threads
    check_integer("threads", threads, 1, MOST_THREADS)
    recipe, batch_size_planned = _changed(recipe, options)
    start = None if options.start_from is None else read_start(options.start_from)
    if task is None:
        task = load_task(
            recipe.task, data_dir=options.data_dir, progress=progress, **recipe.task_options
        )
    if options.max_steps is not None:
        recipe = _seldom_evaluated(recipe, len(task.split("validation")))
    if vary is not None:
        recipe = vary(recipe)
    check_batch_size(recipe.train.batch_size, task)
    check_targets(task, recipe.train)
    check_batch(recipe.train, count_processes() // options.context_parallel)
    seed = options.seed
    model = try_out(lambda: build_model(recipe, task, seed, start), task)
    check_split(model, task, options.context_parallel)
    return ReproducePlan(
        recipe,
        task,
        out,
        seed,
        device,
        threads,
        model.num_parameters(),
        batch_size_planned,
        start,
        options.keep_weights,
        options.context_parallel,
    )


def _changed(recipe: Recipe, options: ReproduceOptions) -> tuple[Recipe, int]:
    """The recipe with the options in it, and the samples per update before they were."""
    recipe = recipe.scaled(options.scale)
    if options.weights is not None:
        recipe = recipe.choosing(cast(Weights, options.weights))
    if options.max_steps is not None:
        recipe = recipe.shortened(options.max_steps)
    changes: dict[str, Any] = {
        "seed": options.seed,
        "compile": options.compile,
        "num_workers": options.num_workers,
    }
    if options.precision is not None:
        check_choice("precision", options.precision, PRECISIONS)
        changes["precision"] = PRECISIONS[options.precision]
    planned = recipe.train.batch_size
    if options.batch_size is not None:
        recipe = replace(recipe, train=recipe.train.with_batch_size(options.batch_size))
    return replace(recipe, train=replace(recipe.train, **changes)), planned


def run_reproduction(
    plan: ReproducePlan,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
    time_is_up: ShouldStop | None = None,
) -> dict[str, Any]:
    """Train to the end, or until stopped; the same call continues.

    Args:
        plan: a checked recipe.
        on_status: called with the status of the run at every step.
        should_stop: polled at every step.
        time_is_up: polled after every step, so that each call makes a step and ends an evaluation.

    Returns:
        What results.json holds: "status" is "complete" or "partial".

    Raises:
        InputError: the folder cannot be written, is in use or belongs to another run.
        TrainingDiverged: loss, metric or weights are not finite.
    """
    recipe = plan.recipe
    with using_threads(plan.threads):
        forget_memory(plan.device)
        result = train_plan(
            plan,
            on_status=on_status,
            should_stop=should_stop,
            time_is_up=time_is_up,
            tests_both=True,
        )
        stored = _stored(plan.out / RESULTS_FILE)
        if stored.get("status") == "complete" and stored.get("result") == result.to_dict():
            return stored  # of the process that trained: this one has done nothing
        memory = process_memory(plan.device)  # before a matrix product that is timed takes more
        speed = _utilisation(plan, result)
    origin = None if plan.start is None else plan.start.origin
    results = sealed(
        results_of(
            recipe,
            plan.task,
            plan.seed,
            result,
            plan.out,
            speed,
            memory,
            plan.batch_size_planned,
            origin,
        )
    )
    if is_main_process():
        write_json(plan.out / RESULTS_FILE, results)
    return results


def train_plan(
    plan: ReproducePlan,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
    time_is_up: ShouldStop | None = None,
    tests_both: bool = False,
) -> TrainResult:
    """Train a recipe's model, or go on; arguments and errors as for `rifflemix.lab.train.train`."""
    recipe = plan.recipe
    feed = StatusFeed(recipe.name, plan.seed, recipe.train.max_steps, on_status, plan.task.metric)
    engine = Engine(recipe.train, plan.device, plan.context_parallel)
    result = train(
        split_model(build_model(recipe, plan.task, plan.seed, plan.start), engine),
        plan.task,
        recipe.train,
        plan.out,
        device=plan.device,
        on_event=feed.on_event,
        should_stop=should_stop,
        time_is_up=time_is_up,
        model_settings=_identity(plan),
        keep_weights=plan.keep_weights,
        context_parallel=plan.context_parallel,
        weights=recipe.weights,
        tests_both=tests_both,
    )
    feed.end(result)
    return result


def _stored(path: Path) -> dict[str, Any]:
    """Results that an earlier process left; empty where there are none that are whole.

    They follow from the run's other files, and are written again if they were changed.
    """
    try:
        stored = parse_json(read_text(path))
        check_seal(stored)
        check_json(stored, _Shown, "results")
        check_results(stored)
    except (OSError, ValueError):
        return {}
    return dict(stored)


class _Shown(TypedDict):
    """The entries that the terminal shows beside those that a report needs."""

    status: str
    printed: float | None
    difference: float | None
    unit: str
    is_reduced: bool
    wall_seconds: float
    seconds: dict[str, float]


def build_model(recipe: Recipe, task: Task, seed: int, start: Start | None = None) -> Model:
    """The recipe's model, fitted to the task's vocabulary, features, classes and lengths."""
    model = fit_model(recipe.model, task, recipe.model_settings, seed)
    if start is not None:
        start_model(model, start, task, recipe.width, new_head=recipe.new_head)
    return model


def _seldom_evaluated(recipe: Recipe, samples: int) -> Recipe:
    """A shortened recipe whose evaluations see no more samples than the training between them."""
    train = recipe.train
    if train.eval_every is None or recipe.planned_steps is None:
        return recipe
    every = max(train.eval_every, math.ceil(samples / train.batch_size))
    return replace(recipe, train=replace(train, eval_every=every))


def _identity(plan: ReproducePlan) -> dict[str, Any]:
    recipe = plan.recipe
    return {
        "recipe": recipe.name,
        "model": recipe.model,
        "model_settings": dict(recipe.model_settings),
        "width": recipe.width,
        **({} if plan.start is None else {"started_from": dict(plan.start.origin)}),
    }


def _utilisation(plan: ReproducePlan, result: TrainResult) -> Utilisation | None:
    if result.steps_per_second is None or plan.context_parallel > 1:
        return None  # one device could not hold the step whose FLOPs would be counted
    model = build_model(plan.recipe, plan.task, plan.seed)
    return utilisation(
        model, plan.task, plan.recipe.train, result.steps_per_second, torch.device(plan.device)
    )
