"""Mixing in strided groups of a sequence in shards: whole groups go to one process each.

One all-to-all brings the tokens of a group together, whatever the stride, one brings them back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.grouped import Grouped
from rifflemix.mixers.strided import StridedGroups
from rifflemix.ops.butterfly import unchecked
from rifflemix.parallel.sharded import ShardedMixer
from rifflemix.parallel.shards import Shards


class ShardedGroups(ShardedMixer, StridedGroups):
    """Every process mixes its share of the groups, or one more than another."""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """See `StridedGroups.mix`."""
        shards = self.shards(x.shape[1])
        block, stride, missing = self.groups(shards.length)
        positions = torch.arange(shards.length + missing).unsqueeze(0)
        groups = unchecked.butterfly_split(positions, block, stride)[0]
        wanted = [
            groups[share.start : share.stop].flatten() for share in shards.shares(len(groups))
        ]
        by_group = (len(x) * len(wanted[shards.rank]) // block, block)
        tokens = shards.exchange(x, wanted).reshape(*by_group, self.dim)
        padded = _padded(x, key_padding_mask, wanted, shards)
        if padded is not None:
            padded = padded.reshape(by_group)
            # As where there are no shards: no mask hides a whole group, which goes in as zeros.
            padded = padded & ~padded.all(dim=1, keepdim=True)
        y = self.mix_group(tokens, key_padding_mask=padded)
        y = y.reshape(len(x), len(wanted[shards.rank]), self.dim)
        places = groups.flatten().argsort()[: shards.length]
        grouped = Shards(shards.group, shards.rank, tuple(map(len, wanted)))
        return grouped.exchange(y, places.split(list(shards.lengths)))


class ShardedButterfly(ShardedGroups, Butterfly):
    """Butterfly attention: every process attends in its share of the groups."""

    def cannot_shard(self) -> str:
        """A random order would need a table of all tokens on every process."""
        return "" if self.token_rank is None else "token_order='random'"


class ShardedGrouped(ShardedGroups, Grouped):
    """Grouped mixing: every process mixes its share of the groups."""


def _padded(x: Tensor, mask: Tensor | None, wanted: list[Tensor], shards: Shards) -> Tensor | None:
    """(B, positions wanted here) bool: which of them are padding, or behind the last token."""
    if mask is not None:
        return shards.exchange((~mask).to(torch.uint8), wanted) == 0
    if sum(map(len, wanted)) == shards.length:
        return None
    behind = wanted[shards.rank] >= shards.length
    return behind.to(x.device).expand(len(x), -1)
