"""Channel-wise permutations of tokens: circular shifts, group sorts and the max exchange.

All permutations skip padded positions (key_padding_mask True) and act only on the valid tokens of
each sample, at any positions. At a padded position, the index is the position itself and the output
is zero. Gradients flow to the values through the gather. The order of a sort has no gradient.

The causal operators `causal_shift` and `rank_filter` are not permutations and have no mask. Their
output at a token does not depend on later tokens.
"""

from rifflemix.ops.permutation.api import (
    causal_shift,
    channel_permute,
    circular_shift,
    group_sort,
    max_exchange,
    rank_filter,
)
from rifflemix.ops.permutation.arguments import ORDERS, SortSpec
from rifflemix.ops.permutation.schedules import (
    SHIFT_KINDS,
    ShiftSchedule,
    interleave_columns,
    shift_steps,
)

__all__ = [
    "ORDERS",
    "SHIFT_KINDS",
    "ShiftSchedule",
    "SortSpec",
    "causal_shift",
    "channel_permute",
    "circular_shift",
    "group_sort",
    "interleave_columns",
    "max_exchange",
    "rank_filter",
    "shift_steps",
]
