"""Modules that torch puts around a model or its parts, and names that do not know of them."""

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
    """What the wrappers around a module hold, or the module itself."""
    while (name := _HOLDS.get(type(module).__name__)) is not None:
        module = getattr(module, name)
    return module


def is_compiled(module: nn.Module) -> bool:
    """Whether it is what `torch.compile` returns, which goes on running what it was given."""
    return type(module).__name__ == "OptimizedModule"


@contextmanager
def without_wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """The model alone, with no part in a wrapper (torch.compile, DataParallel, CheckpointWrapper)
    meanwhile.
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
    """Let the innermost wrapper hold `module`, which may have taken the place of another."""
    if inside(wrapper) is module:
        return
    while (held := getattr(wrapper, _HOLDS[type(wrapper).__name__])) is not inside(wrapper):
        wrapper = held
    setattr(wrapper, _HOLDS[type(wrapper).__name__], module)
