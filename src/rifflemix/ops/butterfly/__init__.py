"""Butterfly structure: strided groups of positions, and block-diagonal linear maps.

Source: Sapkota and Bhattarai, "Dimension Mixer: Group Mixing of Input Dimensions for Efficient
Function Approximation".
"""

from rifflemix.ops.butterfly.api import block_linear, butterfly_merge, butterfly_split
from rifflemix.ops.butterfly.strides import butterfly_layout, butterfly_strides

__all__ = [
    "block_linear",
    "butterfly_layout",
    "butterfly_merge",
    "butterfly_split",
    "butterfly_strides",
]
