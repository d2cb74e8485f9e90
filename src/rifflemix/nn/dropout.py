"""Dropout as a layer."""

from __future__ import annotations

from torch import Tensor, nn

from rifflemix.checks import check_probability
from rifflemix.ops.dropout.unchecked import dropout


class Dropout(nn.Dropout):
    """In training, sets elements to zero with probability `p` and divides the others by 1 - p.

    torch's layer by `rifflemix.ops.dropout`: on a CPU all threads draw, and what is dropped does
    not depend on how many there are.

    Args:
        p: probability in [0, 1).

    Raises:
        InputError: `p` out of range.
    """

    def __init__(self, p: float) -> None:
        super().__init__(check_probability("dropout", p))

    def forward(self, x: Tensor) -> Tensor:
        """Of any shape and floating-point dtype; the same outside training."""
        return dropout(x, self.p) if self.training else x
