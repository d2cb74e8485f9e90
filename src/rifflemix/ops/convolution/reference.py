"""Literal implementation of the equation: slow, easy to check, and the truth in tests."""

from __future__ import annotations

import torch
from torch import Tensor


def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, first: int, length: int
) -> Tensor:
    """See `rifflemix.ops.convolution.backends.short_convolution`."""
    rows = []
    for n in range(length):
        y = torch.zeros_like(x[:, 0]) if bias is None else bias.to(x.dtype).expand_as(x[:, 0])
        for i, tap in enumerate(weight.to(x.dtype)):
            if 0 <= n + first + i < x.shape[1]:
                y = y + tap * x[:, n + first + i]
        rows.append(y)
    return torch.stack(rows, 1)
