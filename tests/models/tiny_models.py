"""Every registered model in a size that a test can afford: what to override, what to feed it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import rifflemix as rm

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Tiny:
    """Overrides that make a model small, and the arguments of its forward for a batch of B."""

    overrides: Mapping[str, Any]
    inputs: Callable[[int], Inputs]
    # Statistics over the batch (BatchNorm) couple samples while training, by definition.
    couples_samples_in_training: bool = field(default=False)


def images(channels: int, height: int, width: int) -> Callable[[int], Inputs]:
    return lambda batch: ((torch.randn(batch, channels, height, width),), {})


def tokens(vocabulary: int, length: int, *, padding: bool = True) -> Callable[[int], Inputs]:
    """Token ids; every sample but the first ends in padding."""

    def make(batch: int) -> Inputs:
        ids = torch.randint(vocabulary, (batch, length))
        mask = torch.arange(length) >= length - torch.arange(batch).unsqueeze(1)
        return (ids,), {"key_padding_mask": mask} if padding else {}

    return make


# By pattern of the name; the first that fits counts.
TINY: dict[str, Tiny] = {
    "encoder": Tiny({"vocab_size": 11, "dim": 16, "max_length": 12}, tokens(11, 12)),
}


def tiny(name: str) -> Tiny:
    """The entry of a registered model."""
    for pattern, entry in TINY.items():
        if fnmatch.fnmatchcase(name, pattern):
            return entry
    raise KeyError(f"model {name} has no line in TINY of tests/models/tiny_models.py")


def build(name: str, **more: Any) -> rm.models.Model:
    """The tiny model, the same weights each time."""
    torch.manual_seed(0)
    return rm.create_model(name, **{**tiny(name).overrides, **more})


def sample(name: str, batch: int = 3) -> Inputs:
    """Arguments for its forward, the same each time."""
    torch.manual_seed(1)
    return tiny(name).inputs(batch)


def outputs_of(result: Any) -> list[Tensor]:
    """The tensors that a forward gave."""
    if isinstance(result, Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [tensor for value in values for tensor in outputs_of(value)]
