"""Softmax cross-attention."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.mixers.cross.base import CrossAttention
from rifflemix.ops.dropout.backends import dropout_attention


class SoftmaxCrossAttention(CrossAttention):
    """Attend from decoder queries to all valid positions of a memory.

    Args:
        dim: channels C of queries, memory and output.
        num_heads: heads H; must divide `dim`.
        dropout: probability of dropping an attention weight.
        bias: add a bias to the Q/K/V/O projections.

    Raises:
        InputError: an argument is out of range.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.

    Example:
        >>> import torch, rifflemix as rm
        >>> layer = rm.mixers.SoftmaxCrossAttention(64, num_heads=4)
        >>> layer(torch.randn(2, 10, 64), torch.randn(2, 256, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self, dim: int, *, num_heads: int = 1, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        self.add_maps(bias=bias)

    def forward(
        self, x: Tensor, memory: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Attend from x to the memory.

        Args:
            x: (B, M, C) queries.
            memory: (B, N, C) tokens of the memory.
            key_padding_mask: (B, N) bool, True = padding of the memory.

        Returns:
            (B, M, C). If a memory has no valid token, the output is the bias of the output
            projection.

        Raises:
            InputError: a shape, dtype or device is wrong.
        """
        self.check_input(x, memory, key_padding_mask)
        if key_padding_mask is not None:  # NaN would reach the gradient of `key_value`
            memory = torch.where(key_padding_mask.unsqueeze(-1), 0.0, memory)
        q, k, v = self.project(x, memory)
        mask = None
        if key_padding_mask is not None:
            # NaN at a padded position must not reach the output. A memory of padding is all zeros.
            padded = key_padding_mask[:, None, :, None]
            k, v = torch.where(padded, 0.0, k), torch.where(padded, 0.0, v)
            nothing = key_padding_mask.all(dim=1)[:, None, None, None]
            mask = ~key_padding_mask[:, None, None, :] | nothing
        y = dropout_attention(q, k, v, mask=mask, dropout_p=self.dropout_now)
        return self.output(y)
