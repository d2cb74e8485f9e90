"""Base classes of attention mixers: Q/K/V projections, heads, patterns of positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_divides, check_integer
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.autograd_functions import unbind_qkv
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.packed import Segments
from rifflemix.mixers.padding import check_no_padding, fill_valid_tokens, mix_valid_tokens

PADDED_QUERIES = ("zero", "mean")


class MultiHeadMixer(TokenMixer):
    """Project to queries, keys and values, attend in each head, project the result.

    Subclasses implement `attend`. `qkv` contains the queries of all heads, then the keys, then the
    values, as in common vision transformers.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        bias: add a bias to the Q/K/V projections.
        out_bias: add a bias to the output projection.
        inner_dim: channels of the queries, keys and values of all heads. Default: C.
        padded_queries: outputs at padded positions. "zero", or "mean": the output projection of
            the mean of all values, padding included. A softmax over equal scores gives this mean
            in the JAX code of the Long Range Arena.
        shared: other arguments of `TokenMixer`.

    Raises:
        InputError: `num_heads` does not divide `inner_dim`, the name in `padded_queries` is
            unknown, or it is "mean" with `causal=True`.
    """

    def __init__(
        self,
        dim: int,
        *,
        bias: bool = True,
        out_bias: bool = True,
        inner_dim: int | None = None,
        padded_queries: str = "zero",
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("padded_queries", padded_queries, PADDED_QUERIES)
        if self.causal and padded_queries == "mean":
            raise bad_argument("padded_queries", "'zero' when causal=True", repr(padded_queries))
        self.padded_queries = padded_queries
        inner = self.dim if inner_dim is None else check_integer("inner_dim", inner_dim, 1)
        self.head_dim = inner // check_divides("num_heads", self.num_heads, inner, "inner_dim")
        self.inner_dim = inner
        self.qkv = nn.Linear(self.dim, 3 * inner, bias=bias)
        self.proj = nn.Linear(inner, self.dim, bias=out_bias)

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Mix tokens.

        Args:
            x: (B, N, C) tokens.
            key_padding_mask: (B, N) bool, True = padding.
            cu_seqlens: (S + 1,) boundaries of packed sequences, see `TokenMixer.forward`.

        Returns:
            (B, N, C). `padded_queries` determines the outputs at padded positions.
        """
        y = super().forward(x, key_padding_mask=key_padding_mask, cu_seqlens=cu_seqlens)
        if key_padding_mask is None or self.padded_queries == "zero":
            return y
        values = self.qkv(x.mean(dim=1, keepdim=True))[..., 2 * self.inner_dim :]
        return torch.where(key_padding_mask.unsqueeze(-1), self.proj(values), y)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        q, k, v = self.split(self.qkv(x))
        y = self.attend(q, k, v, key_padding_mask)
        del q, k, v  # some mixers do not need them for the backward pass
        return self._join(y)

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        def attend(qkv: Tensor, padding: Tensor | None) -> Tensor:
            # Padding comes last: causal outputs of valid tokens do not depend on it.
            mask = None if self.causal else padding
            return self.attend(*self.split(qkv), mask).transpose(1, 2).flatten(2)

        exact = self.card.cost_exponent > 1.0  # padding of long sequences would be expensive
        return self.proj(segments.mix(attend, self.qkv(x), exact=exact))

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.split(self.qkv(x))
        y = self._join(self.attend(q, k, v, key_padding_mask))
        return y, self.remember(k, v, key_padding_mask)

    def empty_cache(
        self, batch_size: int, tokens: int, device: Any, dtype: Any
    ) -> dict[str, Tensor]:
        """Create keys and values of zero.

        Args:
            batch_size: number of sequences B.
            tokens: number of tokens in the cache.
            device: device of the cache.
            dtype: dtype of the cache.

        Returns:
            "keys" and "values", both (B, H, tokens, D).
        """
        shape = (batch_size, self.num_heads, tokens, self.head_dim)
        empty = torch.zeros(shape, device=device, dtype=dtype)
        return {"keys": empty, "values": empty}

    def remember(self, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> dict[str, Tensor]:
        """Create the streaming state after a prompt.

        Args:
            k: (B, H, N, D) keys.
            v: (B, H, N, D) values.
            key_padding_mask: (B, N) bool, True = padding, or None.

        Returns:
            Name -> tensor with the batch in its first dimension, without `position`.
        """
        raise NotImplementedError

    def _join(self, y: Tensor) -> Tensor:
        """Merge heads (B, H, N, D) and project them to (B, N, C)."""
        return self.proj(y.transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Mix the values of each head.

        Args:
            q: (B, H, N, D) queries.
            k: (B, H, N, D) keys.
            v: (B, H, N, D) values.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, H, N, D). Padded positions may contain any finite values.
        """
        raise NotImplementedError

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the result of the Q/K/V projection into heads.

        Args:
            qkv: (B, N, 3 inner_dim).

        Returns:
            Queries, keys and values, each (B, H, N, D).
        """
        heads = qkv.unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = unbind_qkv(heads)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


_BLOCK = 64


class ValidTokensFirst(MultiHeadMixer):
    """Call `attend` with the valid tokens first, in order, and padding last.

    Padding of any pattern and amount does not change the outputs of the valid tokens.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        keep_positions: do not move the padding, only mask it, as released code does. The outputs
            then depend on the positions of the padding.
        shared: other arguments of `MultiHeadMixer`.
    """

    def __init__(self, dim: int, *, keep_positions: bool = False, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.keep_positions = check_bool("keep_positions", keep_positions)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if self.keep_positions:
            return self.mix_in_order(x, key_padding_mask)
        return mix_valid_tokens(self.mix_in_order, x, key_padding_mask)

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.keep_positions:
            check_no_padding(key_padding_mask)
        return fill_valid_tokens(self.fill_in_order, x, key_padding_mask)

    def fill_in_order(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `MultiHeadMixer.fill_stream` on tokens in this order.

        Args:
            x: (B, N, C) tokens.
            key_padding_mask: (B, N) bool, True = padding, which comes last; or None.

        Returns:
            (B, N, C) mixed tokens, and the state after them.
        """
        return super().fill_stream(x, key_padding_mask)

    def mix_in_order(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Run `MultiHeadMixer.mix` on tokens in this order.

        Args:
            x: (B, N, C) tokens.
            key_padding_mask: (B, N) bool, True = padding, or None. Padding comes last unless
                `keep_positions` is set.

        Returns:
            (B, N, C) mixed tokens.
        """
        return super().mix(x, key_padding_mask)


def short_block_size(max_length: int | None, fewest_blocks: int = 8) -> int:
    """Return 64 tokens, or fewer if `max_length` has less than `fewest_blocks` such blocks."""
    if max_length is None:
        return _BLOCK
    return min(_BLOCK, max(1, max_length // fewest_blocks))
