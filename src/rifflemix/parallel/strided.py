"""Sharded mixing in strided groups: each process mixes whole groups.

For any stride, one all-to-all collects the tokens of the groups and a second one returns them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.grouped import Grouped
from rifflemix.mixers.strided import StridedGroups
from rifflemix.mixers.token_groups import missing_tokens
from rifflemix.ops.butterfly import backends
from rifflemix.parallel.sharded import ShardedMixer
from rifflemix.parallel.shards import Shards


class ShardedGroups(ShardedMixer, StridedGroups):
    """Each process mixes its share of the groups. Shares differ by one group at most."""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        shards = self.shards(x.shape[1])
        block, stride = self.groups(shards.length)
        missing = missing_tokens(block * stride, shards.length)
        positions = torch.arange(shards.length + missing).unsqueeze(0)
        groups = backends.FAMILY.pick().butterfly_split(positions, block, stride, 1)[0]
        wanted = [
            groups[share.start : share.stop].flatten() for share in shards.shares(len(groups))
        ]
        by_group = (len(x) * len(wanted[shards.rank]) // block, block)
        tokens = shards.exchange(x, wanted).reshape(*by_group, self.dim)
        padded = _padded(x, key_padding_mask, wanted, shards)
        if padded is not None:
            padded = padded.reshape(by_group)
            # As without shards: a fully padded group is not masked, and its tokens are zeros.
            padded = padded & ~padded.all(dim=1, keepdim=True)
        y = self.mix_group(tokens, key_padding_mask=padded)
        y = y.reshape(len(x), len(wanted[shards.rank]), self.dim)
        places = groups.flatten().argsort()[: shards.length]
        grouped = Shards(shards.group, shards.rank, tuple(map(len, wanted)))
        return grouped.exchange(y, places.split(list(shards.lengths)))


class ShardedButterfly(ShardedGroups, Butterfly):
    """Butterfly attention: each process attends in its share of the groups."""

    def cannot_shard(self) -> str:
        """Report token_order='random': it needs a table of all tokens on every process."""
        return "" if self.token_rank is None else "token_order='random'"


class ShardedGrouped(ShardedGroups, Grouped):
    """Grouped mixing: each process mixes its share of the groups."""


def _padded(x: Tensor, mask: Tensor | None, wanted: list[Tensor], shards: Shards) -> Tensor | None:
    """Mark wanted positions that are padding or after the last token.

    Returns a (B, positions) bool tensor, or None if there are no such positions.
    """
    if mask is not None:
        return shards.exchange((~mask).to(torch.uint8), wanted) == 0
    if sum(map(len, wanted)) == shards.length:
        return None
    behind = wanted[shards.rank] >= shards.length
    return behind.to(x.device).expand(len(x), -1)
