"""Attention classes of users: softmax attention, and classes with another function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

C, H, N = 32, 4, 9


class Attention(nn.Module):
    """Parts and steps that the classes below combine in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.scale = H, (C // H) ** -0.5
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def heads(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.heads(x)
        return q @ k.mT * self.scale, v

    def out(self, scores: Tensor, v: Tensor) -> Tensor:
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Any:
        return self.out(*self.scores(x))


class Causal(Attention):
    def forward(self, x: Tensor) -> Tensor:
        y = functional.scaled_dot_product_attention(*self.heads(x), is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class Triangle(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("tril", torch.ones(12, 12).tril()[None, None])

    def forward(self, x: Tensor) -> Tensor:
        scores, v = self.scores(x)
        length = x.shape[1]
        return self.out(scores.masked_fill(self.tril[..., :length, :length] == 0, -torch.inf), v)


class WithWeights(Attention):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, v = self.scores(x)
        return self.out(scores, v), scores.softmax(-1)


class LearnedBias(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.position_scores = nn.Parameter(torch.zeros(H, N, N))

    def forward(self, x: Tensor) -> Tensor:
        scores, v = self.scores(x)
        return self.out(scores + self.position_scores, v)


class FixedBias(Attention):
    def __init__(self) -> None:
        super().__init__()
        distances = torch.arange(80) - torch.arange(80)[:, None]
        self.register_buffer("alibi", -distances.abs().float())

    def forward(self, x: Tensor) -> Tensor:
        scores, v = self.scores(x)
        return self.out(scores + self.alibi[: x.shape[1], : x.shape[1]], v)


class RelativeTable(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.zeros(169, H))


class Convolution(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.lepe = nn.Conv1d(C, C, 3, padding=1, groups=C)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.lepe(x.mT).mT


class Temperature(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(H, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        scores, v = self.scores(x)
        return self.out(scores * self.temperature, v)


class HeadByHead(Attention):
    def heads(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(-1, (H, 3, -1)).permute(3, 0, 2, 1, 4)


class SequenceFirst(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class Unscaled(Attention):
    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.heads(x)
        return q @ k.mT, v


class Windows(Attention):
    def forward(self, x: Tensor) -> Tensor:
        scores, v = self.scores(x)
        near = torch.ones(scores.shape[-2:]).tril(32).triu(-32).bool()
        return self.out(scores.masked_fill(~near, -torch.inf), v)


class PreNorm(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(C)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class ForImages(Attention):
    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        return super().forward(x)


class OfImages(Attention):
    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        return super().forward(x.view(b, h * w, c)).view(b, h, w, c)


class Random(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn_like(x)


class ZeroOutput(WithWeights):
    """Doubles its scores behind a zero-initialized output layer."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        scores, v = self.scores(x)
        return self.out(2 * scores, v)

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)
