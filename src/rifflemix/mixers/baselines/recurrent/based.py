"""Based: linear attention with Taylor features, next to softmax attention in short windows."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.compat import widest_float
from rifflemix.mixers._attention.linear import linear_attention
from rifflemix.mixers._attention.multi_head import ValidTokensFirst, short_block_size
from rifflemix.mixers._attention.window import window_attention
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.packed import Segments
from rifflemix.mixers.padding import newest_in_slots, take_tokens
from rifflemix.ops.dropout.backends import dropout_attention
from rifflemix.ops.precision import sum_of_products, without_autocast

_EPSILON = 1e-12


class Based(ValidTokensFirst):
    """Sum of global linear attention and exact attention to the nearest tokens.

    The weight of the linear attention is the second-order Taylor polynomial of exp(s) for
    s = q k / sqrt(d), divided by the sum of the weights. Its queries and keys have a small
    dimension d: the features have 1 + d + d (d + 1) / 2 entries, with equal products x_i x_j stored
    once. The window is softmax attention with queries and keys of the usual size.

    The paper alternates layers of both kinds. Here both kinds read the values of the same layer,
    so that every layer can recall and compare. With `causal=True` the mixer streams with a state
    of constant size.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the attention
            weights of the window.
        feature_dim: dimension d of the queries and keys of each head in the linear attention.
        window: tokens w in a window: the token itself and the w - 1 tokens before it. Without
            `causal`, w // 2 before it and (w - 1) // 2 after it. Default: 64, or an eighth of
            `max_length` if that is less.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: `feature_dim` or `window` below 1.

    Source: Arora et al. 2024, "Simple linear attention language models balance the
    recall-throughput tradeoff", equations (1)-(5), section 4.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("based", 64, num_heads=4, causal=True, feature_dim=8, window=16)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="based",
        title="Based",
        paper="Arora et al. 2024, Simple linear attention language models balance the "
        "recall-throughput tradeoff",
        equations="(1)-(5), section 4",
        complexity="O(N (d^2 + w) C), features of d, windows of w",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
    )

    def __init__(
        self,
        dim: int,
        *,
        feature_dim: int = 16,
        window: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        window = short_block_size(self.max_length) if window is None else window
        self.window = check_integer("window", window, 1)
        self.feature_dim = check_integer("feature_dim", feature_dim, 1)
        has_bias = self.qkv.bias is not None
        self.taylor_qk = nn.Linear(self.dim, 2 * self.num_heads * self.feature_dim, bias=has_bias)

    def mix_in_order(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return self._mixed(x, key_padding_mask)[0]

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        return segments.mix(self.mix_in_order, x, exact=False)

    def _mixed(
        self, x: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Return the outputs, and the features of the keys, the keys and the values."""
        q, k, v = self.split(self.qkv(x))
        near = window_attention(
            q,
            k,
            v,
            before=self.window - 1 if self.causal else self.window // 2,
            after=0 if self.causal else (self.window - 1) // 2,
            key_padding_mask=mask,
            dropout=self.dropout_now,
        )
        queries, keys = self._features(x)
        if mask is not None:
            keys = keys.masked_fill(mask[:, None, :, None], 0.0)
        values = v.to(keys.dtype)
        far = linear_attention(queries, keys, values, epsilon=_EPSILON, causal=self.causal)
        return self._join(near + far.to(near.dtype)), (keys, k, v)

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the Taylor features of the queries and keys, (B, H, N, M)."""
        qk = self.taylor_qk(x).unflatten(-1, (2, self.num_heads, self.feature_dim))
        q, k = qk.transpose(1, 3).unbind(2)
        return taylor_features(q), taylor_features(k)

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        wide = widest_float(device)
        d = self.feature_dim
        shape = (batch_size, self.num_heads, 1 + d + d * (d + 1) // 2)
        return {
            "sums": torch.zeros(*shape, self.head_dim, device=device, dtype=wide),
            "norms": torch.zeros(shape, device=device, dtype=wide),
            **self.empty_cache(batch_size, self.window, device, dtype),
        }

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x = x_t.unsqueeze(1)
        q, k, v = self.split(self.qkv(x))
        slots = torch.arange(self.window, device=x_t.device)
        position = state["position"].view(-1, 1, 1, 1)
        here = (slots == position % self.window).mT
        keys, values = torch.where(here, k, state["keys"]), torch.where(here, v, state["values"])
        near = dropout_attention(
            q, keys, values, mask=slots <= position, dropout_p=self.dropout_now
        )
        queries, features = (t.squeeze(2).to(state["sums"].dtype) for t in self._features(x))
        sums = torch.addcmul(state["sums"], features.unsqueeze(-1), v.to(features.dtype))
        norms = state["norms"] + features
        total = (queries * norms).sum(-1, keepdim=True) + _EPSILON
        far = (queries.unsqueeze(-2) @ sums).squeeze(-2) / total
        y = near.squeeze(2) + far.to(near.dtype)
        after = {"sums": sums, "norms": norms, "keys": keys, "values": values}
        return self.proj(y.flatten(1)), after

    def fill_in_order(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, (features, k, v) = self._mixed(x, key_padding_mask)
        slots = newest_in_slots(k, key_padding_mask, self.window, dim=2)
        wide = torch.promote_types(v.dtype, torch.float32)
        with without_autocast(v):
            sums = sum_of_products(features.to(wide), v.to(wide))
        widest = widest_float(v.device)
        return y, {
            "sums": sums.to(widest),
            "norms": features.sum(-2, dtype=widest),
            "keys": take_tokens(k, slots, 2),
            "values": take_tokens(v, slots, 2),
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, feature_dim={self.feature_dim}, window={self.window}"


def taylor_features(x: Tensor) -> Tensor:
    """Map x to features with dot products 1 + s + s^2 / 2, where s = x y / sqrt(d).

    Args:
        x: (..., d).

    Returns:
        (..., 1 + d + d (d + 1) / 2).
    """
    d = x.shape[-1]
    first = x * d**-0.25
    i, j = torch.triu_indices(d, d, device=x.device)
    weight = torch.where(i == j, math.sqrt(0.5), 1.0).to(x.dtype)
    second = first.index_select(-1, i) * first.index_select(-1, j) * weight
    return torch.cat((torch.ones_like(x[..., :1]), first, second), -1)
