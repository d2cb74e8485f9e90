"""Based: linear attention with Taylor features, next to softmax attention in short windows.

The weight of s = q k / sqrt(d) is 1 + s + s^2 / 2. It is also a dot product of features, so earlier
tokens are sums of a fixed size. Features are rows (M, N) here: their products and gradients then
read and write adjacent tokens.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.compat import widest_float
from rifflemix.mixers._attention.autograd_functions import scaled, sums_before
from rifflemix.mixers._attention.multi_head import ValidTokensFirst, short_block_size
from rifflemix.mixers._attention.window import window_attention
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.packed import Segments
from rifflemix.mixers.padding import newest_in_slots, take_tokens
from rifflemix.mixers.token_groups import group_size, join_groups, split_groups
from rifflemix.ops.dropout.backends import dropout_attention
from rifflemix.ops.precision import sum_of_products, wide, without_autocast

_EPSILON = 1e-12
_CHUNK = 64


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
        state_dtype = widest_float(device)
        shape = (batch_size, self.num_heads, num_taylor_features(self.feature_dim))
        return {
            "sums": torch.zeros(*shape, self.head_dim, device=device, dtype=state_dtype),
            "norms": torch.zeros(shape, device=device, dtype=state_dtype),
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
        state_dtype = widest_float(v.device)
        return y, {
            "sums": sums.to(state_dtype),
            "norms": norms.to(state_dtype),
            "keys": take_tokens(k, slots, 2),
            "values": take_tokens(v, slots, 2),
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, feature_dim={self.feature_dim}, window={self.window}"


def num_taylor_features(d: int) -> int:
    """Return the number of features of d numbers."""
    return 1 + d + d * (d + 1) // 2


def taylor_attention(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, *, causal: bool
) -> Tensor:
    """Average the values with the Taylor weights of queries and keys.

    Args:
        q: (B, H, N, d).
        k: (B, H, N, d).
        v: (B, H, N, D).
        key_padding_mask: (B, N) bool, True = weight 0.
        causal: average over tokens up to n. Within a chunk the weights are a matrix, and the
            features of earlier chunks are summed.

    Returns:
        (B, H, N, D), at least in float32: sums of 16-bit features would lose too much.
    """
    q, k, v = wide(q), wide(k), _with_ones(v, key_padding_mask)
    with without_autocast(v):
        if causal:
            y = _causal(q, k, v)
        else:
            y = taylor_features(q.mT).mT @ sum_of_products(taylor_features(k.mT).mT, v)
        y, total = y.split((v.shape[-1] - 1, 1), -1)
        return scaled(y, (total + _EPSILON).reciprocal())


def taylor_sums(k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum features times values, and features, over all tokens: (B, H, M, D) and (B, H, M)."""
    v = _with_ones(v, key_padding_mask)
    with without_autocast(v):
        sums = sum_of_products(taylor_features(wide(k).mT).mT, v)
    return sums[..., :-1], sums[..., -1]


def taylor_features(x: Tensor) -> Tensor:
    """Map x to features with dot products 1 + s + s^2 / 2, where s = x y / sqrt(d).

    Args:
        x: (..., d, N).

    Returns:
        (..., 1 + d + d (d + 1) / 2, N).
    """
    d = x.shape[-2]
    first = x.contiguous() * d**-0.25
    i, j = torch.triu_indices(d, d, 1, device=x.device)
    pairs = first.index_select(-2, i) * first.index_select(-2, j)
    squares = first.square() * math.sqrt(0.5)
    return torch.cat((torch.ones_like(first[..., :1, :]), first, squares, pairs), -2)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length, d = q.shape[-2:]
    chunk = group_size(_CHUNK, length)
    # Values of zero at the end reach only the outputs that `join_groups` removes.
    q, k, v = (split_groups(t, chunk, -2) for t in (q, k, v))
    half = (q * (0.5 / d) ** 0.5) @ k.mT + 0.5**0.5
    weights = (half.square() + 0.5).tril()  # (1 + s)^2 / 2 + 1 / 2
    before = sums_before(taylor_features(k.mT) @ v)
    return join_groups(taylor_features(q.mT).mT @ before + weights @ v, length, 2)


def _with_ones(v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Append a value of 1 to each token, which sums the weights, and set padding to zero."""
    v = F.pad(wide(v), (0, 1), value=1.0)
    return v if key_padding_mask is None else v.masked_fill(key_padding_mask[:, None, :, None], 0.0)
