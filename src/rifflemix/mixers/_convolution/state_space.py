"""Shared parts of state spaces and moving averages: directions and initial steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rifflemix.checks import check_bool
from rifflemix.errors import bad_argument

_SHORTEST_STEP, _LONGEST_STEP = 1e-3, 1e-1


def both_directions(bidirectional: bool | None, causal: bool) -> bool:
    """Return `bidirectional`, or `not causal` if it is None.

    Raises:
        InputError: `bidirectional` and `causal` are both True.
    """
    if bidirectional is None:
        return not causal
    if check_bool("bidirectional", bidirectional) and causal:
        raise bad_argument("bidirectional", "False with causal=True", True)
    return bidirectional


def random_log_steps(*shape: int) -> Tensor:
    """Draw logarithms of steps, uniform from log(0.001) to log(0.1), as in released code."""
    return torch.empty(shape).uniform_(math.log(_SHORTEST_STEP), math.log(_LONGEST_STEP))
