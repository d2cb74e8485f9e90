"""The frame that most attention-like mixers share: query, key and value maps, heads, output map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_divides, check_integer
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.apart import apart
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.packed import Segments

PADDED_QUERIES = ("zero", "mean")


class MultiHeadMixer(TokenMixer):
    """Queries, keys and values head by head, and an output map; a subclass writes `attend`.

    `qkv` holds the three maps one after the other, each with its heads side by side, as common
    vision transformers do.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        bias: add a bias to the query, key and value maps.
        out_bias: add a bias to the output map.
        inner_dim: channels of the queries, keys and values of all heads, C where unset.
        padded_queries: outputs at padded positions: "zero", or the "mean" of all values, padded
            ones included, through the output map: what a softmax over equally large negative scores
            comes to, as in the JAX code of the Long Range Arena.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: `num_heads` does not divide `inner_dim`, an unknown name, or
            padded_queries="mean" with causal=True.
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
        """See `TokenMixer.forward`; what stands at padded positions, `padded_queries` says."""
        y = super().forward(x, key_padding_mask=key_padding_mask, cu_seqlens=cu_seqlens)
        if key_padding_mask is None or self.padded_queries == "zero":
            return y
        values = self.qkv(x.mean(dim=1, keepdim=True))[..., 2 * self.inner_dim :]
        return torch.where(key_padding_mask.unsqueeze(-1), self.proj(values), y)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Project, attend in each head, project."""
        q, k, v = self.split(self.qkv(x))
        y = self.attend(q, k, v, key_padding_mask)
        del q, k, v  # not all mixers keep them for the gradient
        return self._join(y)

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        """`mix`, the maps on the whole row."""

        def attend(qkv: Tensor, padding: Tensor | None) -> Tensor:
            mask = None if self.causal else padding  # which stands last
            return self.attend(*self.split(qkv), mask).transpose(1, 2).flatten(2)

        exact = self.card.cost_exponent > 1.0  # long sequences would pay much for padding
        y: Tensor = self.proj(segments.mix(attend, self.qkv(x), exact=exact))
        return y

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`mix`, and what the stream keeps of the keys and values."""
        q, k, v = self.split(self.qkv(x))
        y = self._join(self.attend(q, k, v, key_padding_mask))
        return y, self.remember(k, v, key_padding_mask)

    def remember(self, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> dict[str, Tensor]:
        """The state after tokens with keys and values (B, H, N, D), in mixers that stream."""
        raise NotImplementedError

    def _join(self, y: Tensor) -> Tensor:
        """(B, H, N, D) -> (B, N, C)."""
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """The operator between the maps.

        Args:
            q: (B, H, N, D) queries.
            k: (B, H, N, D) keys.
            v: (B, H, N, D) values.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, H, N, D); padded positions may hold anything finite.
        """
        raise NotImplementedError

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, 3 inner_dim) -> three times (B, H, N, D)."""
        heads = qkv.unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = apart(heads)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def dropout_p(self) -> float:
        """The probability with which mixing weights are dropped now."""
        return self.dropout if self.training else 0.0
