"""Sequence parallelism: tokens of one sequence on several devices of a DeviceMesh."""

from rifflemix.parallel.api import SHARDED_MIXERS, check_sharded_form, shard_sequence
from rifflemix.parallel.mesh import gather_tokens, mean_over_tokens, shard_tokens

__all__ = [
    "SHARDED_MIXERS",
    "check_sharded_form",
    "gather_tokens",
    "mean_over_tokens",
    "shard_sequence",
    "shard_tokens",
]
