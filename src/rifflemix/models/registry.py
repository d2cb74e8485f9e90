"""The one list of models. A preset is one line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from rifflemix.errors import bad_argument, unknown_name
from rifflemix.models.encoder import Encoder

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "encoder": Encoder,
}


def list_models() -> list[str]:
    """Names of all registered models."""
    return list(_MODELS)


def create_model(name: str, **overrides: Any) -> nn.Module:
    """Build a model by name.

    Args:
        name: one of `list_models()`.
        overrides: settings of the model that replace its defaults.

    Raises:
        InputError: unknown name or setting, or a value out of range.
    """
    if not isinstance(name, str) or name not in _MODELS:
        raise unknown_name("model", name, _MODELS)
    build = _MODELS[name]
    known = inspect.signature(build).parameters
    for override in overrides:
        if override not in known:
            raise bad_argument(f"settings of {name}", ", ".join(known), repr(override))
    return build(**overrides)
