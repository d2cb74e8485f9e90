"""Wrapper modules of torch around a model or its parts (torch.compile, DataParallel, ...)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_HOLDS = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}


def inside(module: nn.Module) -> nn.Module:
    """Return the module inside all wrappers."""
    while (name := _HOLDS.get(type(module).__name__)) is not None:
        module = getattr(module, name)
    return module


def is_compiled(module: nn.Module) -> bool:
    """Return whether `torch.compile` returned the module.

    It keeps running the module that was compiled, even after a replacement.
    """
    return type(module).__name__ == "OptimizedModule"


@contextmanager
def without_wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """Remove all wrappers temporarily and yield the model.

    This includes wrappers of parts: torch.compile, DataParallel and CheckpointWrapper.
    """
    model = inside(model)
    wrapped = [
        (parent, name, child)
        for parent in model.modules()
        if type(parent).__name__ not in _HOLDS
        for name, child in parent._modules.items()
        if child is not None and inside(child) is not child
    ]
    try:
        for parent, name, child in wrapped:
            setattr(parent, name, inside(child))
        yield model
    finally:
        for parent, name, child in wrapped:
            _put_inside(child, getattr(parent, name))
            setattr(parent, name, child)


def _put_inside(wrapper: nn.Module, module: nn.Module) -> None:
    """Set the module inside the innermost wrapper."""
    if inside(wrapper) is module:
        return
    while (held := getattr(wrapper, _HOLDS[type(wrapper).__name__])) is not inside(wrapper):
        wrapper = held
    setattr(wrapper, _HOLDS[type(wrapper).__name__], module)
