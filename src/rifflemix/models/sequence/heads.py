"""Classification heads for one vector or a pair of vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_integers, check_probability
from rifflemix.errors import check_choice
from rifflemix.nn.activations import activation_layer
from rifflemix.nn.dropout import Dropout

PAIR_FEATURES = {"concat": 2, "concat_product_difference": 4}
"""Ways to combine the vectors a, b of two sequences, with the number of vectors in the result:
[a, b] or [a, b, a * b, a - b]. The Long Range Arena calls the second one NLI."""


def classifier_head(
    in_dim: int,
    num_classes: int,
    hidden_dims: Sequence[int] = (),
    *,
    activation: str = "relu",
    bias: bool = True,
    dropout: float = 0.0,
) -> nn.Module:
    """Build linear layers (..., in_dim) -> (..., num_classes) with hidden layers.

    Args:
        in_dim: input channels.
        num_classes: number of outputs.
        hidden_dims: channels of each hidden layer.
        activation: one of `rifflemix.nn.activations.ACTIVATIONS`.
        bias: add a bias to the last linear layer.
        dropout: dropout probability in the hidden layers, before the activation.

    Raises:
        InputError: a size is below 1, the activation is unknown, or `dropout` is not a
            probability.
    """
    check_integer("num_classes", num_classes, 1)
    widths = (in_dim, *check_integers("head_hidden", hidden_dims, 1))
    dropout = check_probability("head_dropout", dropout)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        # One module for both, so that the names of weights do not depend on dropout.
        between = nn.Sequential(Dropout(dropout), activation_layer(activation))
        layers += [nn.Linear(before, after), between]
    last = nn.Linear(widths[-1], num_classes, bias=bias)
    return nn.Sequential(*layers, last) if layers else last


def pair_features(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """Combine the vectors of two sequences.

    Args:
        a: vectors (B, C) of the first sequences.
        b: vectors (B, C) of the second sequences.
        kind: one of `PAIR_FEATURES`.

    Returns:
        (B, 2 C) or (B, 4 C).

    Raises:
        InputError: `kind` is unknown.
    """
    check_choice("pair_features", kind, PAIR_FEATURES)
    parts = (a, b) if kind == "concat" else (a, b, a * b, a - b)
    return torch.cat(parts, dim=-1)
