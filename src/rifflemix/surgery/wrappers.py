"""Modules that torch puts around a model or its parts, and names that do not know of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_HOLDS = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
}


@contextmanager
def without_wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """The model alone, with no part in a wrapper (torch.compile, DataParallel) meanwhile."""
    model = _inside(model)
    wrapped = [
        (parent, name, child)
        for parent in model.modules()
        if type(parent).__name__ not in _HOLDS
        for name, child in parent._modules.items()
        if child is not None and _inside(child) is not child
    ]
    try:
        for parent, name, child in wrapped:
            setattr(parent, name, _inside(child))
        yield model
    finally:
        for parent, name, child in wrapped:
            setattr(parent, name, child)


def _inside(module: nn.Module) -> nn.Module:
    while (name := _HOLDS.get(type(module).__name__)) is not None:
        module = getattr(module, name)
    return module
