"""Creation of a model that fits a task, and a trial run before training."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.runs.outside import checked_mixers
from rifflemix.lab.tasks import Task, card_of
from rifflemix.lab.tasks.images.pixels import WholeImages
from rifflemix.lab.train.evaluate import model_options, run_model
from rifflemix.lab.train.protocols import Batch
from rifflemix.lab.train.seeds import seed_everything
from rifflemix.models import Model, create_model, model_settings

_TOO_LARGE = re.compile("alloc|memory|overflow|too large|size", re.IGNORECASE)


def fit_model(name: str, task: Task, settings: Mapping[str, Any], seed: int) -> Model:
    """Create a model that fits the samples and labels of a task.

    Args:
        name: registry name of the model.
        task: source of vocabulary or features, classes and lengths, if the model has such settings.
        settings: settings of the model; they override the settings from the task.
        seed: seed of the initial weights.

    Raises:
        InputError: a name or setting is unknown, or a value is out of range.
    """
    known = model_settings(name)
    fitted = {key: value for key, value in task_settings(task).items() if key in known}
    seed_everything(seed)
    return create_model(name, **{**fitted, **settings})


def task_settings(task: Task) -> dict[str, Any]:
    """Return the model settings that depend on a task's data."""
    if isinstance(task, WholeImages):
        channels, size, _ = task.image_shape
        inputs: dict[str, Any] = {"image_size": size, "in_channels": channels}
    elif task.input_kind == "tokens":
        inputs = {"max_length": task.max_length, "vocab_size": task.vocab_size}
    elif task.input_kind == "vectors":
        inputs = {"max_length": task.max_length, "in_channels": task.num_features}
    else:  # graphs of any size
        inputs = {"vocab_size": task.vocab_size}
    return {**inputs, "num_classes": task.num_classes}


def pair_settings(model: str, task: Task) -> dict[str, Any]:
    """Return the backbone settings for samples of two sequences.

    The head also gets the product and the difference of the two representations. A linear head
    on the representations alone cannot measure their similarity.
    """
    if "num_sequences" not in model_settings(model):
        raise InputError(
            f"model {model} takes one sequence at a time, but a sample of task {task.name} has "
            f"{task.num_sequences}; choose a model that takes num_sequences, such as encoder"
        )
    return {"num_sequences": task.num_sequences, "pair_mix": "concat_product_difference"}


def check_batch_size(batch_size: int, task: Task) -> None:
    """Raise InputError if a batch is larger than the training split."""
    available = len(task.split("train"))
    if batch_size > available:
        expected = f"at most the {available} samples of the training split"
        raise bad_argument("batch_size", expected, batch_size)


def first_batch(task: Task) -> Batch:
    """Return the first two training samples; repeat a single sample."""
    train = task.split("train")
    return task.collate([train[index] for index in (0, min(1, len(train) - 1))])


def try_out(build: Callable[[], Model], task: Task) -> Model:
    """Build a model and run it on two training samples.

    Returns:
        The model, in evaluation mode.

    Raises:
        InputError: the model cannot be built or run on this machine; the outputs do not match the
            task or are not finite; a third-party mixer fails the checks of `checked_mixers`.
    """
    try:
        model = build().eval()
        batch = first_batch(task)
        _check_takes(model, task, batch)
        with torch.no_grad(), checked_mixers(model):
            outputs = run_model(model, batch)
            loss = task.loss(outputs, batch)  # raises InputError if the outputs do not match
    except InputError:
        raise
    except (RuntimeError, MemoryError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        is_large = not isinstance(error, RuntimeError) or _TOO_LARGE.search(reason)
        what = "no model of this size can be made here" if is_large else "the model cannot be run"
        raise InputError(f"{what}: {reason}") from error
    for name, values in (("outputs", outputs), ("loss", loss)):
        if not torch.isfinite(values).all():
            raise InputError(
                f"expected finite {name} for the first samples of task {task.name}, got NaN or "
                "infinity; check the data"
            )
    return model


def _check_takes(model: Model, task: Task, batch: Batch) -> None:
    """Raise InputError unless the model accepts all optional entries of a batch."""
    parameters = inspect.signature(model.forward).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for name in model_options(batch):
        if name not in parameters:
            fitting = card_of(task).backbone_for(task.options)
            raise InputError(
                f"the model takes no {name}, which batches of task {task.name} have; choose a "
                f"model that takes it, such as {fitting}"
            )
