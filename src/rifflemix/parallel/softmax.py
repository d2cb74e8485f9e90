"""Softmax attention of a sequence in shards, to compare with: own queries, everybody's keys."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.ops.dropout.unchecked import dropout_attention
from rifflemix.parallel.sharded import ShardedAttention
from rifflemix.parallel.shards import Shards


class ShardedSoftmax(ShardedAttention, SoftmaxAttention):
    """Softmax attention: keys and values of all tokens are gathered on every process.

    torch's own context parallelism does the same in its all-gather form, but needs the attention
    kernels of GPUs.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """See `MultiHeadMixer.attend`."""
        shards = self.shards(q.shape[2])
        keys, values = shards.gather(torch.cat((k, v), -1), 2).chunk(2, -1)
        sees = _sees(shards.gather_mask(key_padding_mask), self.causal, shards, q.device)
        return dropout_attention(q, keys, values, mask=sees, dropout_p=self.dropout_p())


def _sees(
    padded: Tensor | None, causal: bool, shards: Shards, device: torch.device
) -> Tensor | None:
    """(B or 1, 1, n or 1, N) bool, which keys a query may attend to; None for all.

    A query that would see no key, which only padded ones are, sees itself, or all.
    """
    valid = None if padded is None else ~padded[:, None, None]
    if not causal:
        return None if valid is None else valid | ~valid.any(-1, keepdim=True)
    keys = torch.arange(shards.length, device=device)
    queries = keys[shards.offset :][: shards.here, None]
    earlier = (keys <= queries)[None, None]
    return earlier if valid is None else (valid & earlier) | (keys == queries)
