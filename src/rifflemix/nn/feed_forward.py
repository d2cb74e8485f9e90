"""The two-layer feed-forward branch of a transformer block."""

from __future__ import annotations

from torch import Tensor, nn

from rifflemix.checks import check_integer, check_probability
from rifflemix.nn.activations import activation_layer
from rifflemix.nn.dropout import Dropout


class FeedForward(nn.Module):
    """Apply linear, activation, dropout, linear, dropout to each token.

    Args:
        dim: input and output channels C.
        hidden_dim: channels between the two linear layers.
        dropout: dropout probability in [0, 1).
        hidden_dropout: dropout probability after the activation, by default `dropout`.
        activation: one of `rifflemix.nn.activations.ACTIVATIONS`.
        bias: add a bias to both linear layers.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        hidden_dropout: float | None = None,
        activation: str = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        dim, hidden_dim = check_integer("dim", dim, 1), check_integer("hidden_dim", hidden_dim, 1)
        dropout = check_probability("dropout", dropout)
        hidden_dropout = dropout if hidden_dropout is None else hidden_dropout
        self.fc1 = nn.Linear(dim, hidden_dim, bias=bias)
        self.act = activation_layer(activation)
        self.hidden_drop = Dropout(check_probability("hidden_dropout", hidden_dropout))
        self.fc2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        y: Tensor = self.drop(self.fc2(self.hidden_drop(self.act(self.fc1(x)))))
        return y
