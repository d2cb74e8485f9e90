"""Operators: functions on tensors, with one subpackage per family."""

from rifflemix.ops.butterfly import (
    BlockMap,
    block_linear,
    block_mlp,
    butterfly_merge,
    butterfly_split,
    butterfly_strides,
)
from rifflemix.ops.dropout import dropout, dropout_attention
from rifflemix.ops.permutation import (
    causal_shift,
    channel_permute,
    circular_shift,
    group_sort,
    interleave_columns,
    max_exchange,
    rank_filter,
    shift_steps,
)
from rifflemix.ops.recurrence import linear_recurrence
from rifflemix.ops.sinkhorn import (
    block_attention,
    block_scores,
    gumbel_noise,
    gumbel_sinkhorn,
    pool_blocks,
    sinkhorn,
    sinkhorn_attention,
    sort_blocks,
    sorted_padding_mask,
    top_k_blocks,
)
from rifflemix.ops.statistics import (
    StatisticsState,
    causal_token_statistics,
    compression_rate,
    token_statistics,
    variational_compression_rate,
)

__all__ = [
    "BlockMap",
    "StatisticsState",
    "block_attention",
    "block_linear",
    "block_mlp",
    "block_scores",
    "butterfly_merge",
    "butterfly_split",
    "butterfly_strides",
    "causal_shift",
    "causal_token_statistics",
    "channel_permute",
    "circular_shift",
    "compression_rate",
    "dropout",
    "dropout_attention",
    "group_sort",
    "gumbel_noise",
    "gumbel_sinkhorn",
    "interleave_columns",
    "linear_recurrence",
    "max_exchange",
    "pool_blocks",
    "rank_filter",
    "shift_steps",
    "sinkhorn",
    "sinkhorn_attention",
    "sort_blocks",
    "sorted_padding_mask",
    "token_statistics",
    "top_k_blocks",
    "variational_compression_rate",
]
