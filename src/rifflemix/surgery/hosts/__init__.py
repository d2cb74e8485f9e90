"""Built-in adapters. They recognize host models without importing the libraries."""

from rifflemix.surgery.adapters import Adapter
from rifflemix.surgery.hosts.rifflemix_models import RifflemixAttention
from rifflemix.surgery.hosts.timm import TimmAttention
from rifflemix.surgery.hosts.timm_copies import CopiedTimmAttention
from rifflemix.surgery.hosts.torch_nn import TorchMultiheadAttention
from rifflemix.surgery.hosts.transformers import TransformersAttention
from rifflemix.surgery.hosts.x_transformers import XTransformersAttention

ADAPTERS: tuple[Adapter, ...] = (
    TorchMultiheadAttention(),
    RifflemixAttention(),
    TimmAttention(),
    TransformersAttention(),
    XTransformersAttention(),
    CopiedTimmAttention(),
)

__all__ = ["ADAPTERS"]
