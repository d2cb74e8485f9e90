"""The hosts that surgery knows. Each is recognised without importing its library."""

from rifflemix.surgery.adapters import Adapter
from rifflemix.surgery.hosts.timm import TimmAttention
from rifflemix.surgery.hosts.torch_nn import TorchMultiheadAttention

ADAPTERS: tuple[Adapter, ...] = (TorchMultiheadAttention(), TimmAttention())

__all__ = ["ADAPTERS"]
