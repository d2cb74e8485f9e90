"""The GPU backend of this family."""

from rifflemix.ops.statistics.triton_causal import causal_token_statistics
from rifflemix.ops.statistics.triton_global import token_statistics

__all__ = ["causal_token_statistics", "token_statistics"]
