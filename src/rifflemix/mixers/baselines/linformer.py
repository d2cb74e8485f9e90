"""Linformer: softmax attention to learned linear combinations of the keys and values."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.compat import take_first
from rifflemix.mixers._attention.multi_head import ValidTokensFirst
from rifflemix.mixers._attention.softmax_parts import masked_attention
from rifflemix.mixers.cards import MixerCard

_INIT_STD = 0.02


class Linformer(ValidTokensFirst):
    """Attention to k learned linear combinations of the keys and values over the positions.

    Shorter sequences use the first columns of the projection. Positions count the valid tokens, or
    all tokens with `keep_positions`.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `max_length` is required: it is
            the width of the projection.
        projected_length: number k of projected keys. Default: 256, or `max_length` if that is
            less.
        share_heads: use one projection for all heads.
        share_kv: use one projection for keys and values.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: `projected_length` below 1.

    Source: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", equation (7)
    and its parameter sharing.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("linformer", 64, max_length=1024, projected_length=64)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="linformer",
        title="Linformer",
        paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity",
        equations="(7)",
        complexity="O(N k C), k projected keys",
        cost_exponent=1.0,
        needs_max_length=True,
    )

    def __init__(
        self,
        dim: int,
        *,
        projected_length: int | None = None,
        share_heads: bool = True,
        share_kv: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        most = check_integer("max_length", self.max_length, 1)
        if projected_length is None:
            projected_length = min(256, most)
        rows = check_integer("projected_length", projected_length, 1)
        shape = (1 if share_heads else self.num_heads, rows, most)
        self.key_projection = nn.Parameter(_INIT_STD * torch.randn(shape))
        self.value_projection = None
        if not share_kv:
            self.value_projection = nn.Parameter(_INIT_STD * torch.randn(shape))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        # Padding adds nothing to the projected keys and values.
        if key_padding_mask is not None:
            padded = key_padding_mask[:, None, :, None]
            k, v = k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0)
        length = k.shape[2]
        of_keys = self.key_projection
        of_values = of_keys if self.value_projection is None else self.value_projection
        k = _mixtures(take_first(of_keys, length, 2), k)
        v = _mixtures(take_first(of_values, length, 2), v)
        return masked_attention(q, k, v, dropout=self.dropout_now)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, projected_length={self.key_projection.shape[1]}"


def _mixtures(projection: Tensor, x: Tensor) -> Tensor:
    """Multiply (1 or H, k, N) by (B, H, N, D), in one product if heads share it."""
    if len(projection) > 1:
        return projection @ x
    together = projection @ x.transpose(1, 2).flatten(2)
    return together.unflatten(-1, (x.shape[1], -1)).transpose(1, 2)
