"""Base class of cross-attention mixers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rifflemix.checks import (
    check_divides,
    check_integer,
    check_like_parameters,
    check_padding_mask,
    check_probability,
    check_tokens,
)
from rifflemix.errors import bad_argument


class CrossAttention(nn.Module):
    """Attend from the queries of a decoder to a memory.

    Args:
        dim: channels C of queries, memory and output.
        num_heads: heads H; must divide `dim`.
        dropout: probability of dropping an attention weight.

    Raises:
        InputError: an argument is out of range.
    """

    query: nn.Linear
    key_value: nn.Linear
    proj: nn.Linear

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.num_heads = check_divides("num_heads", num_heads, dim, "dim")
        self.dropout = check_probability("dropout", dropout)

    def add_maps(self, *, bias: bool) -> None:
        """Create the Q/K/V/O projections."""
        self.query = nn.Linear(self.dim, self.dim, bias=bias)
        self.key_value = nn.Linear(self.dim, 2 * self.dim, bias=bias)
        self.proj = nn.Linear(self.dim, self.dim, bias=bias)

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values of each head.

        Returns:
            Queries (B, H, M, D), keys (B, H, N, D) and values (B, H, N, D).
        """
        q = self._heads(self.query(x))
        k, v = (self._heads(part) for part in self.key_value(memory).chunk(2, -1))
        return q, k, v

    def output(self, y: Tensor) -> Tensor:
        """Merge heads (B, H, M, D) and project them to (B, M, C)."""
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out

    @property
    def dropout_now(self) -> float:
        """Probability of dropping an attention weight; 0 in evaluation mode."""
        return self.dropout if self.training else 0.0

    def check_input(self, x: Tensor, memory: Tensor, key_padding_mask: Tensor | None) -> None:
        """Raise InputError unless queries, memory and mask fit."""
        for name, tensor in (("x", x), ("memory", memory)):
            check_tokens(name, tensor)
            if tensor.shape[1] < 1 or tensor.shape[2] != self.dim:
                expected = f"at least one token and {self.dim} channels in shape (B, N, C)"
                raise bad_argument(name, expected, tuple(tensor.shape))
            check_like_parameters(name, tensor, self)
        if memory.shape[0] != x.shape[0]:
            raise bad_argument("memory", f"the batch size {x.shape[0]} of x", memory.shape[0])
        check_padding_mask(key_padding_mask, memory)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}"

    def _heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2)
