"""Butterfly structure: strided groups of positions, block-diagonal linear layers and MLPs.

Source: Sapkota and Bhattarai, "Dimension Mixer: Group Mixing of Input Dimensions for Efficient
Function Approximation".
"""

from rifflemix.ops.butterfly.api import block_linear, block_mlp, butterfly_merge, butterfly_split
from rifflemix.ops.butterfly.eager import BlockMap
from rifflemix.ops.butterfly.strides import butterfly_layout, butterfly_strides

__all__ = [
    "BlockMap",
    "block_linear",
    "block_mlp",
    "butterfly_layout",
    "butterfly_merge",
    "butterfly_split",
    "butterfly_strides",
]
