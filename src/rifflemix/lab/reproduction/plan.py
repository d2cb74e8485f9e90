"""All checks of a reproduction, made before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from rifflemix.checks import check_integer
from rifflemix.errors import check_choice
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.start import Start, read_start, start_model
from rifflemix.lab.runs.device import check_device, resolve_device
from rifflemix.lab.runs.fit import check_batch_size, fit_model, try_out
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.options import MOST_THREADS, PRECISIONS, ReproduceOptions
from rifflemix.lab.runs.processes import count_processes
from rifflemix.lab.runs.split import check_processes, check_split
from rifflemix.lab.tasks import Progress, Task, load_task
from rifflemix.lab.train.engine import check_batch
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
