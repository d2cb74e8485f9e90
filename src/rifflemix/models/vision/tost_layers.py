"""Layers of ToST: class attention, Fourier positions and the sparse coding step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import (
    check_divides,
    check_floating,
    check_integer,
    check_positive,
    check_probability,
    is_number,
    shown,
)
from rifflemix.errors import bad_argument
from rifflemix.nn.layers import Dropout, FeedForward, LayerScale
from rifflemix.ops.dropout.backends import dropout_attention


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
        return self.proj(gathered.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        """Compute the attention weights of the first token in each head.

        Args:
            x: tokens (B, N, C).

        Returns:
            (B, H, N), without dropout; the weights sum to 1 over the tokens.
        """
        q, k, _ = self._heads(x)
        scores = (q[:, :, :1] @ k.mT).squeeze(2) / k.shape[-1] ** 0.5
        return scores.softmax(dim=-1)

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


class FourierPositions(nn.Module):
    """Sines and cosines of row and column, followed by a learned 1x1 convolution.

    Rows and columns count from 1, and the last position is scaled to 2 pi. Each axis gives
    `features` numbers, sine and cosine in turn. Their frequencies fall from 1 towards
    1 / `temperature`. The features of the rows come first.

    Args:
        dim: channels C.
        features: features per axis, an even number.
        temperature: ratio of the longest wavelength to the shortest.

    Raises:
        InputError: an argument is out of range.

    Source: El-Nouby et al. 2021 (XCiT) and their released code, after Vaswani et al. 2017, section
    3.5.
    """

    def __init__(self, dim: int, *, features: int = 32, temperature: float = 10000.0) -> None:
        super().__init__()
        self.features = check_integer("features", features, 2)
        if features % 2:
            raise bad_argument("features", "an even number", features)
        self.temperature = check_positive("temperature", temperature)
        self.proj = nn.Conv2d(2 * self.features, check_integer("dim", dim, 1), kernel_size=1)

    def forward(self, height: int, width: int) -> Tensor:
        """Compute the embedding of every grid position, (1, C, height, width)."""
        rows, columns = self._axis(height), self._axis(width)
        grid = torch.cat(
            (
                rows[:, None].expand(height, width, self.features),
                columns[None].expand(height, width, self.features),
            ),
            dim=2,
        )
        weight = self.proj.weight
        return self.proj(grid.permute(2, 0, 1)[None].to(weight.dtype))

    def _axis(self, length: int) -> Tensor:
        """Compute the features of one axis, (length, features) float32."""
        device = self.proj.weight.device
        positions = torch.arange(1, length + 1, dtype=torch.float32, device=device)
        # The offset of the published code, so that published weights see their features.
        positions = positions / (length + 1e-6) * (2 * math.pi)
        exponents = torch.arange(0, self.features, 2, dtype=torch.float32, device=device)
        angles = positions[:, None] / self.temperature ** (exponents / self.features)
        return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


class ISTA(nn.Module):
    """One non-negative ISTA step towards a sparse code of the input in a learned dictionary.

    For each token, the step starts at the code a = x. It is a proximal gradient step of length
    `step_size` on 1/2 |x - D a|^2 + `sparsity` * sum(a) over a >= 0:

    relu(x + step_size * (D^T (x - D x) - sparsity))

    The output already includes x. A block therefore computes `x = ista(norm(x))` instead of
    `x = x + feed_forward(norm(x))`.

    Args:
        dim: channels C; the dictionary D is C x C.
        step_size: length of the step, above 0.
        sparsity: weight of the l1 norm, at least 0.

    Raises:
        InputError: an argument is out of range, or the input does not have `dim` channels.

    Source: Yu et al. 2023, "White-Box Transformers via Sparse Rate Reduction", the ISTA block;
    ablation in Wu et al. 2024 (ToST), Table 8.
    """

    def __init__(self, dim: int, *, step_size: float = 0.1, sparsity: float = 0.1) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.step_size = check_positive("step_size", step_size)
        if not is_number(sparsity) or not sparsity >= 0.0:
            raise bad_argument("sparsity", "a number of at least 0", shown(sparsity))
        self.sparsity = sparsity
        self.weight = nn.Parameter(torch.empty(self.dim, self.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize D from He's uniform distribution."""
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the step: (..., C) -> (..., C), non-negative."""
        check_floating("x", x, "(..., C)")
        if x.shape[-1:] != (self.dim,):
            raise bad_argument("x", f"{self.dim} channels in shape (..., C)", tuple(x.shape))
        residual = x - F.linear(x, self.weight)
        descent = F.linear(residual, self.weight.mT) - self.sparsity
        return torch.relu(x + self.step_size * descent)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, step_size={self.step_size}, sparsity={self.sparsity}"
