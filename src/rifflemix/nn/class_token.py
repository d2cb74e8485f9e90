"""A learned class token in front of the sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer


class ClassToken(nn.Module):
    """Prepend one learned token to each sequence.

    Args:
        dim: channels C.
        std: standard deviation of the normal initialization.

    Source: Dosovitskiy et al. 2021, equation (1).
    """

    def __init__(self, dim: int, *, std: float) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, 1, check_integer("dim", dim, 1)).normal_(std=std))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, C) to (B, 1 + N, C)."""
        return torch.cat((self.token.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)

    def no_weight_decay(self) -> set[str]:
        """Return the parameter without weight decay: the token."""
        return {"token"}
