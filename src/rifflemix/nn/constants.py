"""Buffers that are computed from a module's settings and not stored in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn


class KeepsConstants(nn.Module):
    """A module that restores its constant buffers after `to_empty` and loading.

    Large models are built on the meta device. Then `to_empty` allocates uninitialized memory, or
    `load_state_dict(assign=True)` assigns the tensors of a checkpoint. Both leave non-persistent
    buffers without values.
    """

    _constants: Mapping[str, Tensor] = MappingProxyType({})
    """Values of the constants on the CPU, by name."""

    def keep_constants(self, compute: Callable[[], Mapping[str, Tensor | None]]) -> None:
        """Register the tensors of `compute` as buffers on the default device."""
        device = torch.get_default_device()
        with torch.device("cpu"):
            computed = compute()
        self._constants = {name: value for name, value in computed.items() if value is not None}
        for name, value in computed.items():
            on_device = None if value is None else value.to(device)
            self.register_buffer(name, on_device, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # not annotated in torch
        with torch.no_grad():
            for name, value in self._constants.items():
                buffer = self.get_buffer(name)
                if not buffer.is_meta:
                    buffer.copy_(value)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        if not local_metadata.get("assign_to_params_buffers"):
            return
        tensors = (value for value in state_dict.values() if isinstance(value, Tensor))
        here = next((tensor.device for tensor in tensors), torch.get_default_device())
        for name, value in self._constants.items():
            buffer = self.get_buffer(name)
            if buffer.is_meta:
                self.register_buffer(name, value.to(here, buffer.dtype), persistent=False)
