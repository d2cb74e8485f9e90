"""Channel-wise permutations of tokens: circular shifts, group sorts and the max exchange.

In all of these a padded position (key_padding_mask True) is left out: the operator acts on the
valid tokens of each sample alone, wherever they stand, the index at a padded position is the
position itself and the output there is zero. Gradients go to the values, through the gather; an
order has none (`relaxed_group_sort` is the form whose order has one; `soft_rank` are ranks that
have one).

The causal ones, `causal_shift` and `rank_filter`, are no permutations and take no mask: what stands
after a token never reaches it.
"""

from rifflemix.ops.permutation.api import (
    causal_shift,
    channel_permute,
    circular_shift,
    group_sort,
    max_exchange,
    rank_filter,
)
from rifflemix.ops.permutation.arguments import ORDERS
from rifflemix.ops.permutation.relaxed import relaxed_group_sort
from rifflemix.ops.permutation.schedules import SHIFT_KINDS, interleave_columns, shift_steps
from rifflemix.ops.permutation.soft import soft_rank, soft_sort
from rifflemix.ops.permutation.spec import SortSpec

__all__ = [
    "ORDERS",
    "SHIFT_KINDS",
    "SortSpec",
    "causal_shift",
    "channel_permute",
    "circular_shift",
    "group_sort",
    "interleave_columns",
    "max_exchange",
    "rank_filter",
    "relaxed_group_sort",
    "shift_steps",
    "soft_rank",
    "soft_sort",
]
