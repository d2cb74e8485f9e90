"""Calling a model of a user with inputs in the form that he has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def call_model(model: nn.Module, inputs: Any) -> Any:
    """What `model` returns for a tensor, a tuple or list of arguments, or a dict of named ones."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
