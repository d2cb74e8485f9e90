"""Linear attention: weights are dot products of features, and the state has a fixed size."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import autocast_enabled
from rifflemix.compat import widest_float
from rifflemix.mixers._attention.autograd_functions import scaled, sums_before
from rifflemix.mixers._attention.multi_head import MultiHeadMixer
from rifflemix.mixers.token_groups import group_size, join_groups, split_groups
from rifflemix.ops.precision import sum_of_products, without_autocast


class LinearAttentionMixer(MultiHeadMixer):
    """Replace exp(q k) by a dot product of features. Subclasses implement `features`.

    With `causal=True` the mixer also streams. The state contains, for each head, the sum of
    features times values (M, D) and the sum of features.
    """

    epsilon: ClassVar[float]

    def features(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the features of queries and keys.

        Args:
            q: (B, H, N, D) queries.
            k: (B, H, N, D) keys.
            key_padding_mask: (B, N) bool, True = padding.
            start: (B,) int64, position of the first token; None for 0.

        Returns:
            Features of the queries and of the keys, (B, H, N, M), at least 0. Features of padded
            keys are zero. Sums over tokens have the dtype of the features, or a wider one.
        """
        raise NotImplementedError

    def num_features_per_head(self) -> int:
        """Return M, the number of features per head."""
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        q, k = self.features(q, k, key_padding_mask, None)
        return self._attend_features(q, k, v)

    def _attend_features(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = linear_attention(q, k, v.to(k.dtype), epsilon=self.epsilon, causal=self.causal)
        return y.to(v.dtype)

    def weighted_sums(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute the sums of (q_n k_s) v_s over tokens s, up to n if causal.

        Args:
            q: (B, H, N, M) features of the queries.
            k: (B, H, N, M) features of the keys, zero at padded positions.
            v: (B, H, N, D) values.

        Returns:
            (B, H, N, D) sums, not normalized.
        """
        return linear_attention(q, k, v, epsilon=None, causal=self.causal)

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create sums of zero.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens; the state does not depend on it.

        Returns:
            "sums" (B, H, M, D) and "norms" (B, H, M), float64 (float32 on MPS) to keep the digits
            of long sums.
        """
        wide = widest_float(device)
        shape = (batch_size, self.num_heads, self.num_features_per_head())
        return {
            "sums": torch.zeros(*shape, self.head_dim, device=device, dtype=wide),
            "norms": torch.zeros(shape, device=device, dtype=wide),
        }

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.split(self.qkv(x_t.unsqueeze(1)))
        q, k = self.features(q, k, None, state["position"])
        wide = widest_float(x_t.device)
        q, k, values = (t.squeeze(2).to(wide) for t in (q, k, v))
        # One pass over the sums per line: a step mostly reads the sums.
        sums = torch.addcmul(state["sums"].to(wide), k.unsqueeze(-1), values.unsqueeze(-2))
        norms = state["norms"] + k
        y = (q.unsqueeze(-2) @ sums).squeeze(-2)
        y = y / ((q * norms).sum(-1, keepdim=True) + self.epsilon)
        return self.proj(y.to(v.dtype).flatten(1)), {"sums": sums, "norms": norms}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
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
    """Compute sum_s (q_n k_s) v_s / (sum_s q_n k_s + epsilon) without an N x N matrix.

    Args:
        q: (B, H, N, M) features of the queries.
        k: (B, H, N, M) features of the keys, zero at padded positions.
        v: (B, H, N, D) values.
        epsilon: number that is added to the sum of the weights; None: do not normalize.
        causal: sum over s = 0..n only, in chunks. Within a chunk the weights are a matrix. Earlier
            chunks are one M x D sum, so the memory is O(N M D / chunk_size).
        chunk_size: tokens in a chunk.

    Returns:
        (B, H, N, D), the dtype of `v`. float16 inputs are computed in float32: in float16, sums
        over tokens overflow and `epsilon` is 0. Without `epsilon`, a float16 result may be
        infinite.

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
        # An extra value of 1 in each token sums the weights. Transposed, so that the gradient of
        # `k` has the memory layout of `k`.
        sums = sum_of_products(F.pad(v, (0, 1), value=1.0), k).mT
        y, total = (q @ sums).split((v.shape[-1], 1), -1)
        # The gradient of this product needs half the passes of the gradient of a quotient.
        return scaled(y, (total + epsilon).reciprocal())
    norms = k.sum(-2, keepdim=True, dtype=_wide(k))
    return _divided(q @ sum_of_products(k, v), (q * norms).sum(-1, keepdim=True), epsilon)


def _causal(q: Tensor, k: Tensor, v: Tensor, epsilon: float | None, chunk_size: int) -> Tensor:
    length = q.shape[-2]
    chunk = group_size(chunk_size, length)
    # Zero features at the end reach only the outputs that `join_groups` removes.
    q, k, v = (split_groups(t, chunk, -2) for t in (q, k, v))
    weights = (q @ k.mT).tril()
    y = q @ sums_before((k.mT @ v).to(_wide(k))).to(q.dtype) + weights @ v
    if epsilon is not None:
        norms = sums_before(k.sum(-2, keepdim=True, dtype=_wide(k)))
        total = (q * norms).sum(-1, keepdim=True)
        y = _divided(y, total + weights.sum(-1, keepdim=True, dtype=_wide(k)), epsilon)
    return join_groups(y, length, 2)


def _divided(y: Tensor, total: Tensor, epsilon: float) -> Tensor:
    return y / (total + epsilon).to(y.dtype)


def _wide(x: Tensor) -> torch.dtype:
    """Return the dtype for sums over tokens: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)
