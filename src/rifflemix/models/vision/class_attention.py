"""Class attention: the class token attends to all tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rifflemix.checks import check_divides, check_probability
from rifflemix.nn.dropout import Dropout
from rifflemix.nn.feed_forward import FeedForward
from rifflemix.nn.layer_scale import LayerScale
from rifflemix.ops.dropout.unchecked import dropout_attention


class ClassAttention(nn.Module):
    """Softmax attention with one query, the class token, and all tokens as keys and values.

    Args:
        dim: channels C.
        num_heads: heads H, a divisor of `dim`.
        bias: add a bias to the query, key and value projections.
        dropout: dropout probability on the attention weights.

    Source: Touvron et al. 2021, "Going Deeper with Image Transformers", class attention.
    """

    def __init__(
        self, dim: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = check_divides("num_heads", num_heads, dim, "dim")
        self.dropout = check_probability("dropout", dropout)
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from the first token: (B, N, C) -> (B, 1, C)."""
        q, k, v = self._heads(x)
        gathered = dropout_attention(
            q[:, :, :1], k, v, dropout_p=self.dropout if self.training else 0.0
        )
        y: Tensor = self.proj(gathered.transpose(1, 2).flatten(2))
        return y

    def weights(self, x: Tensor) -> Tensor:
        """Compute the attention weights of the first token in each head.

        Args:
            x: tokens (B, N, C).

        Returns:
            (B, H, N), without dropout; the weights sum to 1 over the tokens.
        """
        q, k, _ = self._heads(x)
        scores = (q[:, :, :1] @ k.mT).squeeze(2) / k.shape[-1] ** 0.5
        weights: Tensor = scores.softmax(dim=-1)
        return weights

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values, (B, H, N, C / H) each."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v


class ClassAttentionBlock(nn.Module):
    """Class attention and a feed-forward layer for the first token, as in XCiT.

    Three details of the published models affect the result:

    - The scaled output of the first norm is added to all other tokens too.
    - The second norm replaces the residual stream instead of feeding a branch.
    - After the second norm, all tokens except the first are doubled.

    Args:
        dim: channels C.
        num_heads: heads H, a divisor of `dim`.
        hidden_dim: hidden channels of the feed-forward branch.
        layer_scale: initial factor of both branches.
        tokens_norm: apply the second norm to all tokens instead of only the first.
        bias: add a bias to the query, key and value projections.
        dropout: dropout probability on attention weights and both branches.
        eps: epsilon of the norms.

    Source: El-Nouby et al. 2021 (XCiT) and their released code.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        layer_scale: float = 1.0,
        tokens_norm: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attention = ClassAttention(dim, num_heads, bias=bias, dropout=dropout)
        self.drop = Dropout(dropout)
        self.scale1 = LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = FeedForward(dim, hidden_dim, dropout=dropout)
        self.scale2 = LayerScale(dim, layer_scale)
        self.tokens_norm = tokens_norm

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (B, N, C); the first token is the class token."""
        normed = self.norm1(x)
        gathered = self.drop(self.attention(normed))
        x = x + self.scale1(torch.cat((gathered, normed[:, 1:]), dim=1))
        if self.tokens_norm:
            x = self.norm2(x)
            first = x[:, :1]
        else:
            first = self.norm2(x[:, :1])
        rest = x[:, 1:]
        return torch.cat((first + self.scale2(self.mlp(first)), rest + rest), dim=1)
