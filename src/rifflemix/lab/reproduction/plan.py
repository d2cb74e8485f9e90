"""Check a reproduction before anything is written, and load its initial weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.files import read_json, read_tensors
from rifflemix.lab.experiments import only_run
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.records import Origin
from rifflemix.lab.runs.build_for_task import (
    check_batch_size,
    check_processes,
    check_split,
    fit_model,
    try_out,
)
from rifflemix.lab.runs.environment import check_device, default_threads, resolve_device
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.options import MOST_THREADS, PRECISIONS, ReproduceOptions, count_processes
from rifflemix.lab.tasks import Progress, Task, load_task, task_card
from rifflemix.lab.train.engine import check_batch
from rifflemix.lab.train.run_folder import RunFolder, Weights
from rifflemix.lab.train.targets import check_targets
from rifflemix.models import Model, from_pretrained
from rifflemix.models.pretrained import WEIGHTS
from rifflemix.nn.embeddings import enlarge_grid
from rifflemix.nn.positions import PositionEmbedding


@dataclass(frozen=True)
class InitialWeights:
    """Weights of another run, or of a saved model.

    Attributes:
        weights: the chosen weights by name.
        origin: name and step of the run, and checksum of the file.
        width: factor of the model's widths; None if it is unknown.
    """

    weights: Mapping[str, Tensor]
    origin: Origin
    width: float | None = None


def read_initial_weights(run: Path) -> InitialWeights:
    """Read the chosen weights of a run of `reproduce`, or the file of `save_pretrained`.

    Raises:
        InputError: the folder does not exist, has no evaluation yet, or is damaged.
    """
    folder = RunFolder(only_run(run))
    if not folder.config.is_file():
        expected = "the folder of a run of `rifflemix reproduce`, or of a saved model"
        raise bad_argument("start_from", expected, run)
    if (run / WEIGHTS).is_file():
        return _saved_model(run)
    recipe, width, chosen = _model_of(folder)
    if not chosen.is_file():
        expected = "a run with an evaluation" if chosen == folder.best else "a finished run"
        raise bad_argument("start_from", expected, f"{run}, which has no {chosen.name} yet")
    weights, about = read_tensors(chosen)
    step = about.get("step") if isinstance(about, dict) else None
    if type(step) is not int:
        raise bad_argument(
            "start_from", f"the step of the weights in {chosen} as a whole number", repr(step)
        )
    digest = hashlib.blake2b(chosen.read_bytes(), digest_size=16).hexdigest()
    return InitialWeights(weights, Origin(recipe=recipe, step=step, blake2b=digest), width)


def _saved_model(folder: Path) -> InitialWeights:
    """Read a model that `save_pretrained` wrote."""
    model = from_pretrained(folder)
    digest = hashlib.blake2b((folder / WEIGHTS).read_bytes(), digest_size=16).hexdigest()
    origin = Origin(recipe=f"saved model {model.name}", step=0, blake2b=digest)
    return InitialWeights(model.state_dict(), origin)


def _model_of(folder: RunFolder) -> tuple[str, float | None, Path]:
    """Return the recipe of a run, the factor of its widths and the file of its weights."""
    config = folder.config
    stored = read_json(config)
    model = stored.get("model") if isinstance(stored, dict) else None
    settings = model.get("settings") if isinstance(model, dict) else None
    if not isinstance(settings, dict):
        raise bad_argument(
            "start_from",
            "the folder of a run of `rifflemix reproduce`",
            f"{config} without settings of a model",
        )
    recipe, width = settings.get("recipe", "another run"), settings.get("width")
    if not isinstance(recipe, str):
        raise bad_argument("start_from", f"the recipe in {config} as a text", repr(recipe))
    chosen = folder.chosen("last" if stored.get("weights") == "last" else "best")
    return recipe, width if isinstance(width, int | float) else None, chosen


def start_model(
    model: Model, start: InitialWeights, task: Task, width: float = 1.0, *, new_head: bool = False
) -> None:
    """Load weights of another run into a model. Enlarge learned positions of smaller images.

    Args:
        model: model that gets the weights.
        start: weights of the other run.
        task: task of the training. For images, learned positions are enlarged.
        width: factor of the widths of the model.
        new_head: keep the initial head of the model.

    Raises:
        InputError: a weight is missing or of another shape.
    """
    own = model.state_dict()
    if own.keys() != start.weights.keys():
        name = sorted(own.keys() ^ start.weights.keys())[0]
        where = "the other run" if name in start.weights else "this run"
        raise InputError(f"start_from: expected a run of the same model, only {where} has {name}")
    tables = {
        f"{name}.table"
        for name, part in model.named_modules()
        if isinstance(part, PositionEmbedding)
    }
    weights = dict(start.weights)
    if new_head:
        weights |= {name: tensor for name, tensor in own.items() if name.startswith("head.")}
    for name, tensor in own.items():
        other = weights[name]
        if name in tables and other.dim() == 2 and other.shape[1:] == tensor.shape[1:]:
            weights[name] = _table_of(name, other, len(tensor), task)
        elif other.shape != tensor.shape:
            differ = start.width is not None and start.width != width
            hint = "start from a run of the same --scale" if differ else ""
            raise _other_shape(name, tuple(tensor.shape), other, hint)
    model.load_state_dict(weights)


def _table_of(name: str, table: Tensor, count: int, task: Task) -> Tensor:
    """Return `count` learned positions, enlarged if the task has images."""
    if len(table) == count:
        return table
    wanted = (count, *table.shape[1:])
    if not task_card(task.name).is_image:
        hint = f"positions are enlarged for images only, and {task.name} has none"
        raise _other_shape(name, wanted, table, hint)
    try:
        return enlarge_grid(table, count)
    except InputError as error:
        hint = (
            "positions of a square image of S^2 tokens, with or without a class token, can be "
            "enlarged to (k S)^2 tokens"
        )
        raise _other_shape(name, wanted, table, hint) from error


def _other_shape(name: str, shape: tuple[int, ...], other: Tensor, hint: str) -> InputError:
    expected = f"a run whose weight {name} has shape {shape}"
    return bad_argument("start_from", expected, str(tuple(other.shape)), hint)


@dataclass(frozen=True)
class ReproducePlan:
    """A recipe that has passed all checks and can start.

    Attributes:
        recipe: the recipe with the options of the command.
        task: the loaded data.
        out: folder of the run; it does not exist before the first start.
        seed: seed of the weights, the data order and the noise.
        device: "cpu", "cuda", "cuda:1" ...
        threads: CPU threads.
        parameters: trainable parameters of the model.
        batch_size_planned: samples per update of the recipe.
        start: weights of another run to start from; None for new weights.
        keep_weights: whether to keep the weights of every evaluation.
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
    start: InitialWeights | None = None
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
    """Check everything without writing.

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
    if options.threads is not None:
        check_integer("threads", options.threads, 1, MOST_THREADS)
    recipe, batch_size_planned = _changed(recipe, options)
    start = None if options.start_from is None else read_initial_weights(options.start_from)
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
    tokens = recipe.train.batch_size * task.max_length
    threads = options.threads or default_threads(model.num_parameters(), tokens, device, out)
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
    """Return the recipe with the options, and the samples per update of the recipe."""
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


def build_model(
    recipe: Recipe, task: Task, seed: int, start: InitialWeights | None = None
) -> Model:
    """Build the model of the recipe for the vocabulary, classes and lengths of the task."""
    model = fit_model(recipe.model, task, recipe.model_settings, seed)
    if start is not None:
        start_model(model, start, task, recipe.width, new_head=recipe.new_head)
    return model


def _seldom_evaluated(recipe: Recipe, samples: int) -> Recipe:
    """Reduce the samples per evaluation of a shortened recipe to the training between them."""
    train = recipe.train
    if train.eval_every is None or recipe.planned_steps is None:
        return recipe
    every = max(train.eval_every, math.ceil(samples / train.batch_size))
    return replace(recipe, train=replace(train, eval_every=every))
