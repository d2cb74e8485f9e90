"""A stack of blocks with a user's copy of timm's attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

C, H, N = 16, 4, 9


class Attention(nn.Module):
    """A user's copy of timm's attention."""

    def __init__(self, dim: int = C, num_heads: int = H, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(0.1)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.2)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(C)
        self.attn = attention

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))


def stack(layers: int = 4, **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(Attention(**options)) for _ in range(layers)])


def names(*indices: int) -> list[str]:
    return [f"{i}.attn" for i in indices]
