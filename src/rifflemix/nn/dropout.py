"""Dropout as a layer."""

from __future__ import annotations

from torch import Tensor, nn

from rifflemix.checks import check_probability
from rifflemix.ops.dropout.unchecked import dropout


class Dropout(nn.Dropout):
    """In training, zero each element with probability `p` and divide the others by 1 - p.

    A `torch.nn.Dropout` that runs `rifflemix.ops.dropout`. On a CPU, all threads draw random
    numbers, and the result does not depend on the number of threads.

    Args:
        p: probability in [0, 1).

    Raises:
        InputError: `p` is out of range.
    """

    def __init__(self, p: float) -> None:
        super().__init__(check_probability("dropout", p))

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of `x`, of any shape and floating-point dtype."""
        return dropout(x, self.p) if self.training else x
