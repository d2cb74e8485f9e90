"""Weights that a run starts from: those that another run has chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import read_json, read_tensors
from rifflemix.models import Model
from rifflemix.nn.positions import PositionEmbedding
from rifflemix.nn.resize import enlarge_grid
from rifflemix.train.run_folder import RunFolder


@dataclass(frozen=True)
class Start:
    """Weights of another run.

    Attributes:
        weights: by name, of its best evaluation.
        origin: what results say of them: "recipe", "step" and "blake2b" of the file.
    """

    weights: Mapping[str, Tensor]
    origin: Mapping[str, Any]


def read_start(run: Path) -> Start:
    """The weights that a run of `reproduce` has chosen so far.

    Raises:
        InputError: no such run, or one without an evaluation yet.
    """
    folder = RunFolder(run)
    if not folder.config.is_file():
        raise bad_argument("start_from", "the folder of a run of `rifflemix reproduce`", run)
    if not folder.best.is_file():
        raise bad_argument("start_from", "a run with an evaluation", f"{run}, which has none yet")
    weights, about = read_tensors(folder.best)
    settings = read_json(folder.config)["model"]["settings"]
    digest = hashlib.blake2b(folder.best.read_bytes(), digest_size=16).hexdigest()
    origin = {
        "recipe": settings.get("recipe", "another run"),
        "step": about.get("step"),
        "blake2b": digest,
    }
    return Start(weights, origin)


def start_model(model: Model, start: Start) -> None:
    """Give a model another run's weights; learned positions of a smaller image are enlarged.

    Raises:
        InputError: a weight is missing or of another shape.
    """
    grids = {
        f"{name}.table": module
        for name, module in model.named_modules()
        if isinstance(module, PositionEmbedding)
    }
    own = model.state_dict()
    if own.keys() != start.weights.keys():
        name = sorted(own.keys() ^ start.weights.keys())[0]
        where = "the other run" if name in start.weights else "this run"
        raise InputError(f"start_from: expected a run of the same model, only {where} has {name}")
    weights = dict(start.weights)
    for name, tensor in own.items():
        if name in grids and weights[name].shape != tensor.shape:
            weights[name] = enlarge_grid(weights[name], len(tensor))
        if weights[name].shape != tensor.shape:
            raise InputError(
                f"start_from: expected {name} of shape {tuple(tensor.shape)}, got "
                f"{tuple(weights[name].shape)}; start from a run of the same --scale"
            )
    model.load_state_dict(weights)
