"""Calling any model with a batch in the form that its user has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rifflemix.errors import bad_argument


def call_model(model: nn.Module, inputs: Any, *, name: str = "inputs") -> Any:
    """What a model returns for a batch, whose tensors go to the model's device.

    Args:
        model: any module.
        inputs: a tensor, a tuple or list of arguments, or a mapping of named ones.
        name: of the inputs in the error.

    Raises:
        InputError: inputs of another kind.
    """
    there = on_device_of(model, inputs)
    if isinstance(there, Tensor):
        return model(there)
    if isinstance(there, Mapping):
        return model(**there)
    if isinstance(there, tuple | list):
        return model(*there)
    expected = "tensors, tuples of arguments, or mappings of named ones"
    raise bad_argument(name, expected, type(inputs).__name__)


def on_device_of(model: nn.Module, inputs: Any) -> Any:
    """The inputs, their tensors where the model's first parameter is."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        return inputs

    def moved(value: Any) -> Any:
        return value.to(parameter.device) if isinstance(value, Tensor) else value

    if isinstance(inputs, Mapping):
        return {name: moved(value) for name, value in inputs.items()}
    return [moved(part) for part in inputs] if isinstance(inputs, tuple | list) else moved(inputs)
