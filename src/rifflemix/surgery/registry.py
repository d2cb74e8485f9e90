"""The adapters: those that users register, the latest first, then ours."""

from __future__ import annotations

from torch import nn

from rifflemix.errors import bad_argument
from rifflemix.surgery.adapters import Adapter
from rifflemix.surgery.hosts import ADAPTERS

_registered: list[Adapter] = []


def register_adapter(adapter: Adapter) -> Adapter:
    """Let `replace_attention` know another host; the adapter is asked before all others.

    Args:
        adapter: an instance of a subclass of `rifflemix.surgery.Adapter`.

    Returns:
        The same adapter.

    Raises:
        InputError: not an `Adapter`, or without a name.
    """
    if not isinstance(adapter, Adapter):
        raise bad_argument("adapter", "an instance of rifflemix.surgery.Adapter", repr(adapter))
    if not adapter.name:
        raise bad_argument("adapter", "a name for the reports", "an empty one")
    _registered.insert(0, adapter)
    return adapter


def adapter_for(module: nn.Module) -> Adapter | None:
    """The first adapter that knows `module`."""
    return next((a for a in (*_registered, *ADAPTERS) if a.matches(module)), None)


def is_registered(name: str) -> bool:
    """Whether an adapter of this name is known here."""
    return any(adapter.name == name for adapter in (*_registered, *ADAPTERS))
