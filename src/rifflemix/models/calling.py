"""Calling any model with a batch in the form that its user has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
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


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Inside, torch's attention and encoder layers call the layers and operators they consist of.

    In evaluation mode one operator of torch takes their place, of which hooks and counters see
    nothing.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
