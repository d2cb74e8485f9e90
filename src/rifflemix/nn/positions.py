"""Position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.ops._checks import check_integer


class PositionEmbedding(nn.Module):
    """Adds a learned embedding of each token's position; normal at the start, deviation 0.02.

    Args:
        max_length: most tokens.
        dim: channels C.

    Raises:
        InputError: `max_length` under 1, or more tokens than that in `forward`.
    """

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        shape = check_integer("max_length", max_length, 1), check_integer("dim", dim, 1)
        self.table = nn.Parameter(torch.empty(shape).normal_(std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        if x.shape[1] > self.table.shape[0]:
            raise bad_argument(
                "inputs",
                f"at most max_length = {self.table.shape[0]} tokens",
                x.shape[1],
                "build the model with a larger max_length",
            )
        return x + self.table[: x.shape[1]].to(x.dtype)

    def no_weight_decay(self) -> set[str]:
        """Positions are not weights of a map: they are not decayed."""
        return {"table"}
