"""Softmax attention, the row every table is measured against."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.mixers.attention import masked_attention
from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.ops._checks import check_bool, check_divides, check_integer


class Softmax(TokenMixer):
    """Multi-head softmax attention through torch's scaled_dot_product_attention.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        bias: add a bias to the query, key and value maps.
        out_bias: add a bias to the output map; as `bias` where unset.
        inner_dim: channels of the queries, keys and values of all heads, C where unset.
        shared: the other arguments of `TokenMixer`.

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
        permutation_equivariant=True,
    )

    def __init__(
        self,
        dim: int,
        *,
        bias: bool = True,
        out_bias: bool | None = None,
        inner_dim: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        inner = self.dim if inner_dim is None else check_integer("inner_dim", inner_dim, 1)
        self.head_dim = inner // check_divides("num_heads", self.num_heads, inner, "inner_dim")
        out_bias = bias if out_bias is None else check_bool("out_bias", out_bias)
        self.qkv = nn.Linear(self.dim, 3 * inner, bias=bias)
        self.proj = nn.Linear(inner, self.dim, bias=out_bias)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Attention of every token to every valid (and, if causal, earlier) token."""
        q, k, v = self._split(self.qkv(x))
        y = masked_attention(
            q,
            k,
            v,
            key_padding_mask=key_padding_mask,
            causal=self.causal,
            dropout=self.dropout if self.training else 0.0,
        )
        y = y.transpose(1, 2).flatten(2)
        out: Tensor = self.proj(y)
        return out

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = qkv.unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """An empty key-value cache; it grows by one token a step (not constant memory)."""
        shape = (batch_size, self.num_heads, 0, self.head_dim)
        empty = torch.zeros(shape, device=device, dtype=dtype)
        return {"keys": empty, "values": empty}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One token (B, C): attend to the cache and to itself."""
        q, k, v = self._split(self.qkv(x_t.unsqueeze(1)))
        keys = torch.cat((state["keys"], k), dim=2)
        values = torch.cat((state["values"], v), dim=2)
        y = F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(1)
        return self.proj(y), {"keys": keys, "values": values}
