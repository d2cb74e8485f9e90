"""Wrapper modules of torch around a model, and weights that accelerate offloads.

accelerate loads the weights of a submodule when the submodule is called. A mixer also reads weights
of submodules without a call. `prefill` and `step` do not call the mixer as a module either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

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


def load_at_once(module: nn.Module) -> None:
    """Make accelerate load all weights of a module before each call.

    The function does nothing if no submodule is offloaded. A second call therefore has no effect.

    Args:
        module: module with submodules that may have hooks of accelerate.
    """
    hooks = {name: _offloading(part) for name, part in module.named_modules()}
    one = next((hook for name, hook in hooks.items() if name and hook is not None), None)
    if one is None:
        return
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module
    from accelerate.utils import set_module_tensor_to_device

    maps: dict[str, Mapping[str, Tensor]] = {}
    for name, part in module.named_modules():
        hook = hooks[name]
        own = dict(part.named_parameters(recurse=False)) | dict(part.named_buffers(recurse=False))
        maps[name] = own if hook is None else hook.weights_map
    weights = _Weights(maps)
    remove_hook_from_module(module, recurse=True)
    # Buffers stay in memory: accelerate cannot offload buffers of submodules with one hook.
    for name, buffer in module.named_buffers():
        if buffer.is_meta:
            set_module_tensor_to_device(module, name, one.execution_device, weights[name])
    whole = AlignDevicesHook(
        execution_device=one.execution_device,
        offload=True,
        weights_map=weights,
        place_submodules=True,
        skip_keys=one.skip_keys,
        tied_params_map=one.tied_params_map,
    )
    add_hook_to_module(module, whole)


def _offloading(part: nn.Module) -> Any:
    """Return the hook that offloads the weights of a module, or None."""
    hook = vars(part).get("_hf_hook")
    several = getattr(hook, "hooks", (hook,))
    return next((one for one in several if getattr(one, "offload", False)), None)


class _Weights(Mapping[str, Tensor]):
    """Weights of several submodules, read on access."""

    def __init__(self, maps: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.maps = maps

    def __getitem__(self, name: str) -> Tensor:
        part, _, key = name.rpartition(".")
        return self.maps[part][key]

    def __iter__(self) -> Iterator[str]:
        return (f"{part}.{key}" if part else key for part in self.maps for key in self.maps[part])

    def __len__(self) -> int:
        return sum(1 for _ in self)
