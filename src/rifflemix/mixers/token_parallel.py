"""Token-parallel attention: softmax attention in independent groups of channels."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_bool, check_divides
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.softmax_parts import masked_attention
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.nn.butterfly import BlockLinear
from rifflemix.ops.dropout.backends import dropout as drop


class TokenParallel(TokenMixer):
    """Attention over all tokens with block-diagonal projections, one block per channel group.

    The feed-forward layer after the mixer combines the groups.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` is the total number
            of heads in all groups.
        num_groups: groups g of C/g channels; must divide `num_heads`. Default: one head per group
            (Token-Parallel 1 in the paper).
        use_wout: use a block-diagonal output projection. Default, as in the paper: True with
            several heads per group (Token-Parallel 2). False with one head per group, since the
            value projection absorbs it. The released code inverts the flag, and the paper counts
            parameters with this code. `use_wout=num_groups == num_heads` gives the same counts.
        softmax_over: "keys", the usual attention, or "queries", as in the released code. With
            "queries" the weights of each key sum to one. "queries" does not support `causal=True`,
            since each weight would depend on later queries.
        bias: add a bias to the projections.
        shared: other arguments of `TokenMixer`.

    Source: Dimension Mixer, appendix D.1.

    Example:
        >>> import rifflemix as rm
        >>> mixer = rm.create_mixer("token_parallel", 64, num_heads=8, num_groups=4)
        >>> full = rm.create_mixer("softmax", 64, num_heads=8)
        >>> [sum(p.numel() for p in m.parameters()) for m in (mixer, full)]
        [4352, 16640]
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="token_parallel",
        title="Token-parallel attention",
        paper="Sapkota and Bhattarai 2025, Dimension Mixer",
        equations="appendix D.1",
        complexity="O(N^2 C)",
        cost_exponent=2.0,
        causal=True,
        permutation_equivariant=True,
    )

    def __init__(
        self,
        dim: int,
        *,
        num_groups: int | None = None,
        use_wout: bool | None = None,
        softmax_over: str = "keys",
        bias: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("softmax_over", softmax_over, ("keys", "queries"))
        if self.causal and softmax_over == "queries":
            raise bad_argument("softmax_over", "'keys' when causal=True", repr(softmax_over))
        self.softmax_over = softmax_over
        groups = self.num_heads
        if num_groups is not None:
            groups = check_divides("num_groups", num_groups, self.num_heads, "num_heads")
        self.num_groups = groups
        width = self.dim // groups
        self.qkv = BlockLinear(groups, width, 3 * width, bias=bias)
        use_wout = groups < self.num_heads if use_wout is None else check_bool("use_wout", use_wout)
        self.proj = BlockLinear(groups, width, width, bias=bias) if use_wout else None

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        heads = self.num_heads // self.num_groups
        qkv = self.qkv(x).unflatten(-1, (self.num_groups, 3, heads, self.dim // self.num_heads))
        q, k, v = qkv.permute(3, 0, 2, 4, 1, 5).flatten(2, 3).unbind(0)
        y = self._attend(q, k, v, key_padding_mask)
        y = y.transpose(1, 2).flatten(2)
        return y if self.proj is None else self.proj(y)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        dropout = self.dropout_now
        if self.softmax_over == "queries":
            return _query_normalised(q, k, v, key_padding_mask, dropout)
        return masked_attention(
            q, k, v, key_padding_mask=key_padding_mask, causal=self.causal, dropout=dropout
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_groups={self.num_groups}"


def _query_normalised(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, dropout: float
) -> Tensor:
    """Attend with weights that sum to one over the valid queries."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if key_padding_mask is not None:
        # The lowest number instead of -inf avoids NaN in samples that are padding only.
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(key_padding_mask[:, None, :, None], lowest)
        v = torch.where(key_padding_mask[:, None, :, None], 0.0, v)
    weights = drop(scores.softmax(dim=-2), dropout)
    return weights @ v
