"""Claim of a run folder at the start of training, and results of finished runs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn

from rifflemix.errors import InputError
from rifflemix.files import damaged_run, read_json, read_tensors
from rifflemix.json_values import check_seal
from rifflemix.lab.train.checkpoint import check_tensors, load_model_weights, weight_shapes
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.results import TrainResult
from rifflemix.lab.train.run_folder import RunFolder, Weights

_TEST_AGAIN = "remove it to have the trained model tested again"
_WRITE_AGAIN = "remove {} to have the checkpoint's weights written and tested again"


def claim(folder: RunFolder, description: dict[str, Any], stack: ExitStack) -> Any:
    """Lock a run's folder until `stack` closes and return training.json, or None.

    Raises:
        InputError: `RunFolder.opened` failed, or training.json is damaged.
    """
    stack.enter_context(folder.opened(description))
    return read_json(folder.result, _TEST_AGAIN) if folder.result.exists() else None


def load_chosen(engine: Engine, folder: RunFolder, model: nn.Module, weights: Weights) -> None:
    """Load the chosen weights of a finished run into a model.

    Raises:
        InputError: the file of the weights is missing or damaged.
    """
    path, advice = folder.chosen(weights), _WRITE_AGAIN.format(folder.result)
    if not path.exists():
        raise InputError(f"{path} is missing; {advice}")
    tensors, _ = read_tensors(path, advice)
    check_tensors(path, tensors, weight_shapes(model), advice)
    load_model_weights(model.to(engine.device), tensors, processes=1)


def stored_result(folder: RunFolder, stored: Any, metric: str) -> TrainResult:
    """Decode the stored result of a finished run.

    Raises:
        InputError: the result is damaged, or has another metric.
    """
    try:
        check_seal(stored)
        result = TrainResult.from_dict(stored)
    except ValueError as error:
        raise damaged_run(folder.result, str(error), _TEST_AGAIN) from error
    if not result.finished or not result.test or result.metric != metric:
        reason = f"expected a finished run, chosen by {metric}"
        raise damaged_run(folder.result, reason, _TEST_AGAIN)
    return result
