"""Softmax attention: the reference for every comparison."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_bool
from rifflemix.errors import bad_argument
from rifflemix.mixers._attention.multi_head import MultiHeadMixer
from rifflemix.mixers._attention.softmax_parts import (
    attend_to_cache,
    masked_attention,
    new_cache,
    rotate,
    with_token,
)
from rifflemix.mixers.cards import MixerCard
from rifflemix.nn.positions import valid_positions


class SoftmaxAttention(MultiHeadMixer):
    """Multi-head softmax attention with torch's scaled_dot_product_attention.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        bias: add a bias to the Q/K/V projections.
        out_bias: add a bias to the output projection. Default: the value of `bias`.
        rotary: rotate queries and keys by their positions, so that scores depend on distances.
            Positions count valid tokens only.
        shared: the other arguments of `MultiHeadMixer`, such as `inner_dim`, and of `TokenMixer`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation (1).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("softmax", 64, num_heads=4, causal=True, rotary=True)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
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
        rotary: bool = False,
        **shared: Any,
    ) -> None:
        out_bias = bias if out_bias is None else check_bool("out_bias", out_bias)
        super().__init__(dim, bias=bias, out_bias=out_bias, **shared)
        self.rotary = check_bool("rotary", rotary)
        if rotary and self.head_dim % 2:
            raise bad_argument("rotary", "False for heads of odd size", rotary)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if self.rotary:
            q = rotate(q, _positions(q, key_padding_mask))
            k = rotate(k, _positions(k, key_padding_mask))
        return masked_attention(
            q,
            k,
            v,
            key_padding_mask=key_padding_mask,
            causal=self.causal,
            dropout=self.dropout_now,
        )

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        return self.empty_cache(batch_size, 0, device, dtype)

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.split(self.qkv(x_t.unsqueeze(1)))
        if self.rotary:
            position = state["position"].unsqueeze(1)
            q, k = rotate(q, position), rotate(k, position)
        after = with_token(state, keys=k, values=v)
        return self.proj(attend_to_cache(q, after["keys"], after["values"], after)), after

    def remember(self, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> dict[str, Tensor]:
        if self.rotary:
            k = rotate(k, _positions(k, key_padding_mask))
        return new_cache(key_padding_mask, keys=k, values=v)


def _positions(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Number the valid tokens of (B, H, N, D)."""
    if key_padding_mask is None:
        return torch.arange(x.shape[2], device=x.device)
    return valid_positions(key_padding_mask)
