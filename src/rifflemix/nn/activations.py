"""Activation functions by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from rifflemix.errors import check_choice

_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}

ACTIVATIONS = tuple(_LAYERS)
"""Names of the activations: gelu is exact, gelu_tanh is the tanh approximation."""


def activation_layer(name: str) -> nn.Module:
    """Build the activation `name`, one of `ACTIVATIONS`.

    Raises:
        InputError: `name` is not in `ACTIVATIONS`.
    """
    check_choice("activation", name, ACTIVATIONS)
    return _LAYERS[name]()
