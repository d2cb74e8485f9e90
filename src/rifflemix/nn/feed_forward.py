"""The two-layer feed-forward branch of a transformer block."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from rifflemix.ops._checks import check_integer, check_probability


class FeedForward(nn.Module):
    """Linear, GELU, dropout, Linear, dropout, token by token.

    Args:
        dim: channels C in and out.
        hidden_dim: channels between the two maps.
        dropout: probability in [0, 1).
        gelu: "none" for the exact GELU, "tanh" for its approximation.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        gelu: Literal["none", "tanh"] = "none",
    ) -> None:
        super().__init__()
        dim, hidden_dim = check_integer("dim", dim, 1), check_integer("hidden_dim", hidden_dim, 1)
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU(approximate=gelu)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(check_probability("dropout", dropout))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        y: Tensor = self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))
        return y
