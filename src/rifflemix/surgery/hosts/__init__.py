"""The hosts that surgery knows. Each is recognised without importing its library."""

from rifflemix.surgery.adapters import Adapter
from rifflemix.surgery.hosts.torch_nn import TorchMultiheadAttention

ADAPTERS: tuple[Adapter, ...] = (TorchMultiheadAttention(),)

__all__ = ["ADAPTERS"]
