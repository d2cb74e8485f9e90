"""Attention whose weights are dot products of features: linear in N, with a constant state."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import autocast_enabled
from rifflemix.compat import take_first, widest_float
from rifflemix.mixers._attention.fused_features import scaled
from rifflemix.mixers._attention.multi_head import MultiHeadMixer
from rifflemix.mixers.padding import block_of, missing_tokens
from rifflemix.ops.precision import sum_of_products, without_autocast


class LinearAttentionMixer(MultiHeadMixer):
    """Mixers that replace exp(q k) by a dot product of features; a subclass writes `features`.

    With `causal=True` they also stream: the state holds, per head, the M x D sum of features
    times values, and the sum of features.
    """

    epsilon: ClassVar[float]

    def features(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Features of queries and keys.

        Args:
            q: (B, H, N, D) queries.
            k: (B, H, N, D) keys.
            key_padding_mask: (B, N) bool, True = padding.
            start: (B,) int64, the position of the first token; None for 0.

        Returns:
            Twice (B, H, N, M), at least 0; of keys, zero at padded positions. Where the type is
            wider than that of `q`, the sums are taken in it.
        """
        raise NotImplementedError

    def num_features_per_head(self) -> int:
        """M, the width of `features`."""
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """See `MultiHeadMixer.attend`."""
        q, k = self.features(q, k, key_padding_mask, None)
        return self._attend_features(q, k, v)

    def _attend_features(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = linear_attention(q, k, v.to(k.dtype), epsilon=self.epsilon, causal=self.causal)
        return y.to(v.dtype)

    def weighted_sums(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Sum of (q_n k_s) v_s over all tokens s or, with causal=True, up to n: (B, H, N, D)."""
        return linear_attention(q, k, v, epsilon=None, causal=self.causal)

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """The sums before the first token, of constant size, in float64: see `StatisticsState`."""
        wide = widest_float(device)
        shape = (batch_size, self.num_heads, self.num_features_per_head())
        return {
            "sums": torch.zeros(*shape, self.head_dim, device=device, dtype=wide),
            "norms": torch.zeros(shape, device=device, dtype=wide),
        }

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One token (B, C): its features go into the sums, and out come its output and the sums."""
        q, k, v = self.split(self.qkv(x_t.unsqueeze(1)))
        q, k = self.features(q, k, None, state["position"])
        wide = widest_float(x_t.device)
        q, k, values = (t.squeeze(2).to(wide) for t in (q, k, v))
        # A pass over the sums for each line: they are most of what a step reads.
        sums = torch.addcmul(state["sums"].to(wide), k.unsqueeze(-1), values.unsqueeze(-2))
        norms = state["norms"] + k
        y = (q.unsqueeze(-2) @ sums).squeeze(-2)
        y = y / ((q * norms).sum(-1, keepdim=True) + self.epsilon)
        return self.proj(y.to(v.dtype).flatten(1)), {"sums": sums, "norms": norms}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`mix` in chunks, and the sums over all tokens."""
        q, k, v = self.split(self.qkv(x))
        q, k = self.features(q, k, key_padding_mask, None)
        y = self._attend_features(q, k, v)
        widest = widest_float(v.device)
        with without_autocast(v):
            sums = sum_of_products(k.to(_wide(v)), v.to(_wide(v)))
        return self._join(y), {"sums": sums.to(widest), "norms": k.sum(-2, dtype=widest)}


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    epsilon: float | None,
    causal: bool = False,
    chunk_size: int = 64,
) -> Tensor:
    """sum_s (q_n k_s) v_s / (sum_s q_n k_s + epsilon), without the N x N matrix of weights.

    Args:
        q: (B, H, N, M) features of the queries.
        k: (B, H, N, M) features of the keys, zero at padded positions.
        v: (B, H, N, D) values.
        epsilon: added to the sum of the weights; None leaves the result unnormalised.
        causal: s runs over 0..n only. Tokens go in chunks: within one, the weights are a
            matrix; earlier chunks come as one M x D sum, so that O(N M D / chunk_size) numbers
            are kept.
        chunk_size: tokens in a chunk.

    Returns:
        (B, H, N, D), the dtype of `v`. In float16, whose numbers end at 65,504, all of it is
        computed in float32: there, sums over tokens overflow and `epsilon` is 0. So without
        `epsilon` the result itself may be infinite.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", equations (5), (6), (9)-(12).
    """
    kind = k.device.type
    autocast = autocast_enabled(kind)
    if torch.float16 in (k.dtype, torch.get_autocast_dtype(kind) if autocast else k.dtype):
        wide = (t.to(_wide(t)) for t in (q, k, v))
        with without_autocast(k):
            y = linear_attention(*wide, epsilon=epsilon, causal=causal, chunk_size=chunk_size)
        return y.to(v.dtype)
    if causal:
        return _causal(q, k, v, epsilon, chunk_size)
    if epsilon is None:
        return q @ sum_of_products(k, v)
    if k.dtype == _wide(k) == v.dtype and not autocast:
        # One more value, which is 1 in all tokens, sums the weights on the way.
        # Transposed, for the gradient of `k` then comes as `k` lies.
        sums = sum_of_products(F.pad(v, (0, 1), value=1.0), k).mT
        y, total = (q @ sums).split((v.shape[-1], 1), -1)
        # The gradient takes half the passes of that of a quotient.
        return scaled(y, (total + epsilon).reciprocal())
    norms = k.sum(-2, keepdim=True, dtype=_wide(k))
    return _divided(q @ sum_of_products(k, v), (q * norms).sum(-1, keepdim=True), epsilon)


def _causal(q: Tensor, k: Tensor, v: Tensor, epsilon: float | None, chunk_size: int) -> Tensor:
    length = q.shape[-2]
    chunk = block_of(chunk_size, length)
    # Zero features at the end reach only the outputs that are cut off again.
    missing = missing_tokens(chunk, length)
    q, k, v = (F.pad(t, (0, 0, 0, missing)).unflatten(-2, (-1, chunk)) for t in (q, k, v))
    weights = (q @ k.mT).tril()
    y = q @ _sum_before(k.mT @ v).to(q.dtype) + weights @ v
    if epsilon is not None:
        norms = _sum_before(k.sum(-2, keepdim=True, dtype=_wide(k)))
        total = (q * norms).sum(-1, keepdim=True)
        y = _divided(y, total + weights.sum(-1, keepdim=True, dtype=_wide(k)), epsilon)
    return take_first(y.flatten(2, 3), length, 2)


def _sum_before(chunks: Tensor) -> Tensor:
    """(B, H, chunks, R, S) -> for each chunk the sum over the chunks before it, in float32."""
    running = chunks.cumsum(2, dtype=_wide(chunks))
    return F.pad(running, (0, 0, 0, 0, 1, 0))[:, :, :-1]


def _divided(y: Tensor, total: Tensor, epsilon: float) -> Tensor:
    return y / (total + epsilon).to(y.dtype)


def _wide(x: Tensor) -> torch.dtype:
    """The type sums over tokens are taken in: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)
