"""The frame that most attention-like mixers share: query, key and value maps, heads, output map."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rifflemix.mixers.base import TokenMixer


class MultiHeadMixer(TokenMixer):
    """Queries, keys and values head by head, and an output map; a subclass writes `attend`.

    `qkv` holds the three maps one after the other, each with its heads side by side, as common
    vision transformers do.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        bias: add a bias to the query, key and value maps.
        out_bias: add a bias to the output map.
        shared: the other arguments of `TokenMixer`.
    """

    def __init__(
        self, dim: int, *, bias: bool = True, out_bias: bool = True, **shared: Any
    ) -> None:
        super().__init__(dim, **shared)
        self.head_dim = self.dim // self.num_heads
        self.qkv = nn.Linear(self.dim, 3 * self.dim, bias=bias)
        self.proj = nn.Linear(self.dim, self.dim, bias=out_bias)

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
            (B, H, N, D); padded places may hold anything finite.
        """
        raise NotImplementedError

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, 3C) -> three times (B, H, N, D)."""
        heads = qkv.unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def dropout_p(self) -> float:
        """The probability with which mixing weights are dropped now."""
        return self.dropout if self.training else 0.0
