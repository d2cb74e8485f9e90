"""Registry of adapters: user adapters first (latest first), then built-in adapters."""

from __future__ import annotations

from torch import nn

from rifflemix.errors import bad_argument
from rifflemix.surgery.adapters import Adapter
from rifflemix.surgery.hosts import ADAPTERS

_registered: list[Adapter] = []


def register_adapter(adapter: Adapter) -> Adapter:
    """Add an adapter for the attention of another host library.

    `replace_attention` tries the latest adapter first, and built-in adapters last.

    Args:
        adapter: instance of a subclass of `rifflemix.surgery.Adapter`.

    Returns:
        The same adapter.

    Raises:
        InputError: the argument is not an `Adapter`, or the adapter has no name.
    """
    if not isinstance(adapter, Adapter):
        raise bad_argument("adapter", "an instance of rifflemix.surgery.Adapter", repr(adapter))
    if not adapter.name:
        raise bad_argument("adapter", "a name for the reports", "an empty one")
    _registered.insert(0, adapter)
    return adapter


def adapter_for(module: nn.Module) -> Adapter | None:
    """Return the first adapter that matches `module`, or None."""
    return next((a for a in (*_registered, *ADAPTERS) if a.matches(module)), None)


def is_registered(name: str) -> bool:
    """Return whether an adapter with this name exists."""
    return any(adapter.name == name for adapter in (*_registered, *ADAPTERS))
