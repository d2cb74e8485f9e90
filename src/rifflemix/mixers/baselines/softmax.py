"""Softmax attention: the reference for every comparison."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_bool
from rifflemix.mixers._attention.cache import attend_to_cache, new_cache, with_token
from rifflemix.mixers._attention.masked import masked_attention
from rifflemix.mixers._attention.multi_head import MultiHeadMixer
from rifflemix.mixers.base import MixerCard


class SoftmaxAttention(MultiHeadMixer):
    """Multi-head softmax attention with torch's scaled_dot_product_attention.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        bias: add a bias to the Q/K/V projections.
        out_bias: add a bias to the output projection. Default: the value of `bias`.
        shared: the other arguments of `MultiHeadMixer`, such as `inner_dim`, and of `TokenMixer`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation (1).
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="softmax",
        title="Softmax attention",
        paper="Vaswani et al. 2017, Attention Is All You Need",
        equations="(1)",
        complexity="O(N^2 C)",
        cost_exponent=2.0,
        causal=True,
        streaming=True,
        packed=True,
        permutation_equivariant=True,
    )

    def __init__(
        self,
        dim: int,
        *,
        bias: bool = True,
        out_bias: bool | None = None,
        **shared: Any,
    ) -> None:
        out_bias = bias if out_bias is None else check_bool("out_bias", out_bias)
        super().__init__(dim, bias=bias, out_bias=out_bias, **shared)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return masked_attention(
            q,
            k,
            v,
            key_padding_mask=key_padding_mask,
            causal=self.causal,
            dropout=self.dropout_p(),
        )

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create an empty key-value cache. It grows by one token per step."""
        shape = (batch_size, self.num_heads, 0, self.head_dim)
        empty = torch.zeros(shape, device=device, dtype=dtype)
        return {"keys": empty, "values": empty}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.split(self.qkv(x_t.unsqueeze(1)))
        after = with_token(state, keys=k, values=v)
        return self.proj(attend_to_cache(q, after["keys"], after["values"], after)), after

    def remember(self, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> dict[str, Tensor]:
        """Return a cache of all keys and values."""
        return new_cache(key_padding_mask, keys=k, values=v)
