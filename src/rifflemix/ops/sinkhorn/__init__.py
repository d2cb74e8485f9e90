"""Sparse Sinkhorn attention: learned sorting of blocks of keys and values.

Source: Tay, Bahri, Yang, Metzler, Juan 2020, "Sparse Sinkhorn Attention".
"""

from rifflemix.ops.sinkhorn.attention import block_attention, sinkhorn_attention
from rifflemix.ops.sinkhorn.balancing import (
    gumbel_noise,
    gumbel_sinkhorn,
    sinkhorn,
    top_k_blocks,
)
from rifflemix.ops.sinkhorn.blocks import (
    block_scores,
    pool_blocks,
    sort_blocks,
    sorted_padding_mask,
)
from rifflemix.ops.sinkhorn.options import SinkhornOptions

__all__ = [
    "SinkhornOptions",
    "block_attention",
    "block_scores",
    "gumbel_noise",
    "gumbel_sinkhorn",
    "pool_blocks",
    "sinkhorn",
    "sinkhorn_attention",
    "sort_blocks",
    "sorted_padding_mask",
    "top_k_blocks",
]
