"""Sharded softmax attention, a baseline: queries of this process, keys of all processes."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.ops.dropout.backends import dropout_attention
from rifflemix.parallel.sharded import ShardedAttention
from rifflemix.parallel.shards import Shards


class ShardedSoftmax(ShardedAttention, SoftmaxAttention):
    """Softmax attention: every process gathers the keys and values of all tokens.

    The all-gather variant of torch's context parallelism does the same, but needs GPU kernels.
    """

    def cannot_shard(self) -> str:
        """Report `rotary`: positions of shards are not implemented."""
        return "rotary=True" if self.rotary else ShardedAttention.cannot_shard(self)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        shards = self.shards(q.shape[2])
        keys, values = shards.gather(torch.cat((k, v), -1), 2).chunk(2, -1)
        sees = _sees(shards.gather_mask(key_padding_mask), self.causal, shards, q.device)
        return dropout_attention(q, keys, values, mask=sees, dropout_p=self.dropout_now)


def _sees(
    padded: Tensor | None, causal: bool, shards: Shards, device: torch.device
) -> Tensor | None:
    """Return the mask, (B or 1, 1, n or 1, N) bool, or None.

    A query without any valid key attends to itself if causal, else to all keys. Only padded
    queries can have no valid key.
    """
    valid = None if padded is None else ~padded[:, None, None]
    if not causal:
        return None if valid is None else valid | ~valid.any(-1, keepdim=True)
    keys = torch.arange(shards.length, device=device)
    queries = keys[shards.offset :][: shards.here, None]
    earlier = (keys <= queries)[None, None]
    return earlier if valid is None else (valid & earlier) | (keys == queries)
