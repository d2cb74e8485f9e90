"""The CPU backend of this family."""

from rifflemix.ops.statistics.cpu_causal import causal_token_statistics
from rifflemix.ops.statistics.cpu_common import supports
from rifflemix.ops.statistics.cpu_global import token_statistics

__all__ = ["causal_token_statistics", "supports", "token_statistics"]
