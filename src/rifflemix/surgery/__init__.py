"""Replace attention in models of other libraries."""

import sys

from rifflemix.surgery.adapters import Adapter, HostAttention, ParentChange
from rifflemix.surgery.description import describe_swap
from rifflemix.surgery.distillation import distil
from rifflemix.surgery.hosts.timm_attn_layer import attn_layer
from rifflemix.surgery.hub import register_hf
from rifflemix.surgery.masks import check_causality, key_padding_mask, merge_padding
from rifflemix.surgery.replace import replace_attention
from rifflemix.surgery.report import SurgeryReport
from rifflemix.surgery.sites import register_adapter
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.swaps import apply_swap, load_swapped, restore_attention, save_swapped
from rifflemix.surgery.weights import HostWeights, Projection

__all__ = [
    "Adapter",
    "HostAttention",
    "HostWeights",
    "ParentChange",
    "Projection",
    "SurgeryReport",
    "SwappedAttention",
    "apply_swap",
    "attn_layer",
    "check_causality",
    "describe_swap",
    "distil",
    "key_padding_mask",
    "load_swapped",
    "merge_padding",
    "register_adapter",
    "register_hf",
    "replace_attention",
    "restore_attention",
    "save_swapped",
]

if "transformers" in sys.modules:  # so that from_pretrained can load swapped models
    register_hf()
