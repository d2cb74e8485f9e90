"""The hosts that surgery knows. Each is recognised without importing its library."""

from rifflemix.surgery.adapters import Adapter
from rifflemix.surgery.hosts.timm import TimmAttention
from rifflemix.surgery.hosts.torch_nn import TorchMultiheadAttention
from rifflemix.surgery.hosts.transformers import TransformersAttention

ADAPTERS: tuple[Adapter, ...] = (
    TorchMultiheadAttention(),
    TimmAttention(),
    TransformersAttention(),
)

__all__ = ["ADAPTERS"]
