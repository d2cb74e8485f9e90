"""A learned token in front of the sequence, from which a classifier reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer


class ClassToken(nn.Module):
    """Prepends one learned token, normal at the start.

    Args:
        dim: channels C.
        std: its deviation at the start.

    Source: Dosovitskiy et al. 2021, equation (1).
    """

    def __init__(self, dim: int, *, std: float) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, 1, check_integer("dim", dim, 1)).normal_(std=std))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, 1 + N, C)."""
        return torch.cat((self.token.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)

    def no_weight_decay(self) -> set[str]:
        """A token is not a weight of a map: it is not decayed."""
        return {"token"}
