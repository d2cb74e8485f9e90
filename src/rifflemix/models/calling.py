"""Call any model with a batch of tensors, arguments or named arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument


def call_model(model: nn.Module, inputs: Any, *, name: str = "inputs") -> Any:
    """Call a model with a batch, on the device of the model.

    Args:
        model: any module.
        inputs: a tensor, a tuple or list of arguments, or a mapping of named arguments.
        name: the name of the inputs in the error message.

    Raises:
        InputError: `inputs` has another type.
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
    """Move all tensors to the device of the model's first parameter."""
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
    """Disable the fast path of torch's attention and encoder layers.

    In evaluation mode the fast path is a single operator. Hooks and counters then do not see the
    layers and operators that it replaces.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
