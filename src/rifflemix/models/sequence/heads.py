"""From one vector, or a pair of them, to class scores."""

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
"""How the vectors a, b of two sequences meet, [a, b] or [a, b, a * b, a - b], and how many
vectors long that is. The second one is what the Long Range Arena calls NLI."""


def classifier_head(
    in_dim: int,
    num_classes: int,
    hidden_dims: Sequence[int] = (),
    *,
    activation: str = "relu",
    bias: bool = True,
    dropout: float = 0.0,
) -> nn.Module:
    """Linear maps (..., in_dim) -> (..., num_classes) through `hidden_dims`, activated between.

    Args:
        in_dim: channels in.
        num_classes: outputs.
        hidden_dims: channels of each hidden layer.
        activation: one of `rifflemix.nn.activations.ACTIVATIONS`.
        bias: give the last map a bias.
        dropout: probability of dropping a hidden channel, before it is activated.

    Raises:
        InputError: a size under 1, an unknown activation or no probability.
    """
    check_integer("num_classes", num_classes, 1)
    widths = (in_dim, *check_integers("head_hidden", hidden_dims, 1))
    dropout = check_probability("head_dropout", dropout)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        # One position for both: names of weights do not depend on dropout.
        between = nn.Sequential(Dropout(dropout), activation_layer(activation))
        layers += [nn.Linear(before, after), between]
    last = nn.Linear(widths[-1], num_classes, bias=bias)
    return nn.Sequential(*layers, last) if layers else last


def pair_features(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """(B, C) and (B, C) -> (B, 2 C) or (B, 4 C); `kind` is one of `PAIR_FEATURES`.

    Raises:
        InputError: another kind.
    """
    check_choice("pair_features", kind, PAIR_FEATURES)
    parts = (a, b) if kind == "concat" else (a, b, a * b, a - b)
    return torch.cat(parts, dim=-1)
