"""Softmax attention from one sequence to another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import (
    check_divides,
    check_integer,
    check_padding_mask,
    check_probability,
    check_tokens,
)
from rifflemix.errors import bad_argument


class SoftmaxCrossAttention(nn.Module):
    """Queries of a decoder attend to all valid positions of a memory.

    Args:
        dim: channels C of queries, memory and output.
        num_heads: heads H; must divide `dim`.
        dropout: probability of dropping an attention weight.
        bias: add a bias to the four maps.

    Raises:
        InputError: an argument out of range.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.
    """

    def __init__(
        self, dim: int, *, num_heads: int = 1, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.num_heads = check_divides("num_heads", num_heads, dim, "dim")
        self.dropout = check_probability("dropout", dropout)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key_value = nn.Linear(dim, 2 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim, bias=bias)

    def forward(
        self, x: Tensor, memory: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Attend from x to the memory.

        Args:
            x: (B, M, C) queries.
            memory: (B, N, C) what is attended to.
            key_padding_mask: (B, N) bool, True = padding of the memory.

        Returns:
            (B, M, C). A memory without a valid token is attended to as zeros: what comes out
            is the bias of the output map.

        Raises:
            InputError: wrong shape, dtype or device.
        """
        self._check_input(x, memory, key_padding_mask)
        q = self._heads(self.query(x))
        k, v = (self._heads(part) for part in self.key_value(memory).chunk(2, -1))
        mask = None
        if key_padding_mask is not None:
            # Even NaN in a padded position reaches nothing; a memory of padding alone is all zeros.
            padded = key_padding_mask[:, None, :, None]
            k, v = k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0)
            nothing = key_padding_mask.all(dim=1)[:, None, None, None]
            mask = ~key_padding_mask[:, None, None, :] | nothing
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2)

    def _check_input(self, x: Tensor, memory: Tensor, key_padding_mask: Tensor | None) -> None:
        for name, tensor in (("x", x), ("memory", memory)):
            check_tokens(name, tensor)
            if tensor.shape[1] < 1 or tensor.shape[2] != self.dim:
                expected = f"at least one token and {self.dim} channels in shape (B, N, C)"
                raise bad_argument(name, expected, tuple(tensor.shape))
        if memory.shape[0] != x.shape[0]:
            raise bad_argument("memory", f"a batch of {x.shape[0]}, as x", memory.shape[0])
        check_padding_mask(key_padding_mask, memory)

    def extra_repr(self) -> str:
        """The settings, for print(model)."""
        return f"dim={self.dim}, num_heads={self.num_heads}"
