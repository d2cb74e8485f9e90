"""The frame that most attention-like mixers share: query, key and value maps, heads, output map."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rifflemix.checks import check_divides, check_integer
from rifflemix.mixers.base import TokenMixer


class MultiHeadMixer(TokenMixer):
    """Queries, keys and values head by head, and an output map; a subclass writes `attend`.

    `qkv` holds the three maps one after the other, each with its heads side by side, as common
    vision transformers do.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        bias: add a bias to the query, key and value maps.
        out_bias: add a bias to the output map.
        inner_dim: channels of the queries, keys and values of all heads, C where unset.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: `num_heads` does not divide `inner_dim`.
    """

    def __init__(
        self,
        dim: int,
        *,
        bias: bool = True,
        out_bias: bool = True,
        inner_dim: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        inner = self.dim if inner_dim is None else check_integer("inner_dim", inner_dim, 1)
        self.head_dim = inner // check_divides("num_heads", self.num_heads, inner, "inner_dim")
        self.inner_dim = inner
        self.qkv = nn.Linear(self.dim, 3 * inner, bias=bias)
        self.proj = nn.Linear(inner, self.dim, bias=out_bias)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Project, attend in each head, project."""
        q, k, v = self.split(self.qkv(x))
        y = self.attend(q, k, v, key_padding_mask)
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
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def dropout_p(self) -> float:
        """The probability with which mixing weights are dropped now."""
        return self.dropout if self.training else 0.0
