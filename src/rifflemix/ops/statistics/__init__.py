"""Token statistics: attention from second moments of tokens, without pairwise products.

Source: Wu et al. 2024, "Token Statistics Transformer: Linear-Time Attention via Variational Rate
Reduction" (ToST, TSSA).
"""

from rifflemix.ops.statistics.api import (
    causal_token_statistics,
    compression_rate,
    token_statistics,
    variational_compression_rate,
)
from rifflemix.ops.statistics.common import StatisticsState

__all__ = [
    "StatisticsState",
    "causal_token_statistics",
    "compression_rate",
    "token_statistics",
    "variational_compression_rate",
]
