"""What state spaces and moving averages have in common: their directions, and their first steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rifflemix.checks import check_bool
from rifflemix.errors import bad_argument

_SHORTEST_STEP, _LONGEST_STEP = 1e-3, 1e-1


def both_directions(bidirectional: bool | None, causal: bool) -> bool:
    """`bidirectional` where it is set, else unless `causal`.

    Raises:
        InputError: both.
    """
    if bidirectional is None:
        return not causal
    if check_bool("bidirectional", bidirectional) and causal:
        raise bad_argument("bidirectional", "False with causal=True", True)
    return bidirectional


def random_log_steps(*shape: int) -> Tensor:
    """Logarithms of steps from 0.001 to 0.1, uniform: where released code starts them."""
    return torch.empty(shape).uniform_(math.log(_SHORTEST_STEP), math.log(_LONGEST_STEP))
