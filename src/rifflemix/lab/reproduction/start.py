"""Weights that a run starts from: those that another run has chosen, or of a saved model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import read_json, read_tensors
from rifflemix.lab.experiments import only_run
from rifflemix.lab.tasks import Task, task_card
from rifflemix.lab.train.run_folder import RunFolder
from rifflemix.models import Model
from rifflemix.models.pretrained import WEIGHTS, from_pretrained
from rifflemix.nn.positions import PositionEmbedding
from rifflemix.nn.resize import enlarge_grid


@dataclass(frozen=True)
class Start:
    """Weights of another run, or of a saved model.

    Attributes:
        weights: by name, those that the run has chosen.
        origin: what results say of them: "recipe", "step" and "blake2b" of the file; of a saved
            model its name, and step 0.
        width: the factor of its model's widths; None where it says none.
    """

    weights: Mapping[str, Tensor]
    origin: Mapping[str, Any]
    width: float | None = None


def read_start(run: Path) -> Start:
    """The weights that a run of `reproduce` has chosen so far, or that `save_pretrained` wrote.

    Raises:
        InputError: no such folder, a run without an evaluation yet, or a damaged one.
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
    return Start(weights, {"recipe": recipe, "step": step, "blake2b": digest}, width)


def _saved_model(folder: Path) -> Start:
    """Weights of a model that `save_pretrained` wrote."""
    model = from_pretrained(folder)
    digest = hashlib.blake2b((folder / WEIGHTS).read_bytes(), digest_size=16).hexdigest()
    origin = {"recipe": f"saved model {model.name}", "step": 0, "blake2b": digest}
    return Start(model.state_dict(), origin)


def _model_of(folder: RunFolder) -> tuple[str, float | None, Path]:
    """The name of a run's recipe, the factor of its widths and the file of its weights."""
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
    model: Model, start: Start, task: Task, width: float = 1.0, *, new_head: bool = False
) -> None:
    """Give a model another run's weights; learned positions of a smaller image are enlarged.

    Args:
        model: whose weights are replaced.
        start: the other run's weights.
        task: what the model is trained on; positions are enlarged where it is one of images.
        width: the factor of the model's widths.
        new_head: leave the model's head as it is, whatever the other one's.

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
    """`count` learned positions, enlarged where the task is one of images."""
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
