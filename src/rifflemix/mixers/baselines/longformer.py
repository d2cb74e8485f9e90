"""Longformer: sliding-window attention, and global tokens with separate projections."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.mixers._attention.multi_head import ValidTokensFirst, short_block_size
from rifflemix.mixers._attention.window import SharedKeys, see_something, window_attention
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.dropout.backends import dropout_attention


class Longformer(ValidTokensFirst):
    """Attention of each token to a window around it and to a few global tokens.

    The first `num_global` valid tokens are global: they see all tokens, and all tokens see them.
    Attention from global tokens uses separate Q/K/V projections (`global_qkv`). Attention from all
    other tokens uses the usual projections, for global keys too.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the attention
            weights. With `causal=True` the windows end at their token, and global tokens see no
            later tokens.
        window: tokens w in a window: the token itself, w // 2 before it and (w - 1) // 2 after it.
            Default: 129, or a quarter of `max_length` plus 1 if that is less. The Long Range
            Arena and the paper use 512.
        num_global: number of global tokens at the start, such as a class token. With 0 there are
            no separate projections.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: `window` below 1 or `num_global` below 0.

    Source: Beltagy et al. 2020, "Longformer: The Long-Document Transformer", section 3.1, without
    dilation.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("longformer", 64, num_heads=4, window=33, num_global=1)
        >>> mixer(torch.randn(2, 256, 64)).shape
        torch.Size([2, 256, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="longformer",
        title="Longformer",
        paper="Beltagy et al. 2020, Longformer: The Long-Document Transformer",
        equations="section 3.1",
        complexity="O(N (w + g) C), windows of w, g global tokens",
        cost_exponent=1.0,
        causal=True,
        thread_sums="products with the rows of the global tokens",
    )

    def __init__(
        self,
        dim: int,
        *,
        window: int | None = None,
        num_global: int = 1,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        if window is None:
            window = 2 * short_block_size(self.max_length) + 1
        self.window = check_integer("window", window, 1)
        self.num_global = check_integer("num_global", num_global, 0)
        has_bias = self.qkv.bias is not None
        self.global_qkv = (
            nn.Linear(self.dim, 3 * self.inner_dim, bias=has_bias) if num_global else None
        )

    def mix_in_order(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        # `attend` computes no outputs of global tokens: `global_qkv` has their projections.
        y = self.attend(*self.split(self.qkv(x)), key_padding_mask)
        if self.global_qkv is not None:
            q, k, v = self.split(self.global_qkv(x))
            seen = self._attend_globally(q[:, :, : self.num_global], k, v, key_padding_mask)
            y = y.slice_scatter(seen, 2, 0, seen.shape[2])
        return self.proj(y.transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        # `mix_in_order` replaces the outputs of global tokens.
        return window_attention(
            q,
            k,
            v,
            before=self.window // 2,
            after=0 if self.causal else (self.window - 1) // 2,
            key_padding_mask=self._not_in_windows(k, key_padding_mask),
            shared=self._global_keys(k, v, key_padding_mask),
            dropout=self.dropout_now,
        )

    def _not_in_windows(self, k: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        """Mask padding and global tokens, because `_global_keys` already adds global tokens."""
        if not self.num_global:
            return key_padding_mask
        is_global = torch.arange(k.shape[2], device=k.device) < self.num_global
        if key_padding_mask is None:
            return is_global.expand(k.shape[0], -1)
        return key_padding_mask | is_global

    def _global_keys(
        self, k: Tensor, v: Tensor, key_padding_mask: Tensor | None
    ) -> SharedKeys | None:
        if not self.num_global:
            return None
        keys, values = k[:, :, : self.num_global], v[:, :, : self.num_global]
        visible = self._not_later(k.shape[2], keys.shape[2], k.device)
        if key_padding_mask is not None:
            visible = visible & ~key_padding_mask[:, None, : self.num_global]
        return SharedKeys(keys, values, visible.expand(k.shape[0], -1, -1))

    def _attend_globally(
        self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None
    ) -> Tensor:
        """Attend from global queries q (B, H, G, D) to valid, if causal not later, keys."""
        sees = self._not_later(q.shape[2], k.shape[2], k.device)
        if key_padding_mask is not None:
            sees = see_something(sees & ~key_padding_mask.unsqueeze(1)).unsqueeze(1)
        return dropout_attention(q, k, v, mask=sees, dropout_p=self.dropout_now)

    def _not_later(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return a (queries, keys) mask: True, or if causal False for later keys."""
        everything = torch.ones(queries, keys, dtype=torch.bool, device=device)
        return everything.tril() if self.causal else everything

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, window={self.window}, num_global={self.num_global}"
