"""Based: linear attention with Taylor features, next to softmax attention in short windows."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.compat import widest_float
from rifflemix.mixers._attention.multi_head import ValidTokensFirst, short_block_size
from rifflemix.mixers._attention.taylor import (
    num_taylor_features,
    taylor_attention,
    taylor_features,
    taylor_sums,
)
from rifflemix.mixers._attention.window import window_attention
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.packed import Segments
from rifflemix.mixers.padding import newest_in_slots, take_tokens
from rifflemix.ops.dropout.backends import dropout_attention


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
        """Return the outputs, and the keys of the linear attention, the keys and the values."""
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
        queries, keys = self._small_queries_and_keys(x)
        far = taylor_attention(queries, keys, v, mask, causal=self.causal)
        return self._join(near + far.to(near.dtype)), (keys, k, v)

    def _small_queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the queries and keys of the linear attention, (B, H, N, d)."""
        qk = self.taylor_qk(x).unflatten(-1, (2, self.num_heads, self.feature_dim))
        q, k = qk.transpose(1, 3).unbind(2)
        return q, k

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        wide = widest_float(device)
        shape = (batch_size, self.num_heads, num_taylor_features(self.feature_dim))
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
        queries, features = (
            taylor_features(t.to(state["sums"].dtype).mT).squeeze(-1)
            for t in self._small_queries_and_keys(x)
        )
        sums = torch.addcmul(state["sums"], features.unsqueeze(-1), v.to(features.dtype))
        norms = state["norms"] + features
        total = (queries * norms).sum(-1, keepdim=True)
        far = (queries.unsqueeze(-2) @ sums).squeeze(-2) / total
        y = near.squeeze(2) + far.to(near.dtype)
        after = {"sums": sums, "norms": norms, "keys": keys, "values": values}
        return self.proj(y.flatten(1)), after

    def fill_in_order(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, (small, k, v) = self._mixed(x, key_padding_mask)
        sums, norms = taylor_sums(small, v, key_padding_mask)
        slots = newest_in_slots(k, key_padding_mask, self.window, dim=2)
        wide = widest_float(v.device)
        return y, {
            "sums": sums.to(wide),
            "norms": norms.to(wide),
            "keys": take_tokens(k, slots, 2),
            "values": take_tokens(v, slots, 2),
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, feature_dim={self.feature_dim}, window={self.window}"
