"""Buffers that follow from a module's settings, and are in no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn


class KeepsConstants(nn.Module):
    """A module with constants that are right in whatever memory it is given.

    Models too large to be built twice are built on the meta device; then `to_empty` gives them
    memory that holds anything, or `load_state_dict(assign=True)` the tensors of a file. Neither
    knows of buffers that no file holds.
    """

    _constants: Mapping[str, Tensor] = MappingProxyType({})
    """On the CPU, by name; none in a subclass that keeps none."""

    def keep_constants(self, compute: Callable[[], Mapping[str, Tensor | None]]) -> None:
        """Register what `compute` returns, by name, as buffers on the default device."""
        device = torch.get_default_device()
        with torch.device("cpu"):
            computed = compute()
        self._constants = {name: value for name, value in computed.items() if value is not None}
        for name, value in computed.items():
            on_device = None if value is None else value.to(device)
            self.register_buffer(name, on_device, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch gives it no types
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
