"""A linear map whose weight its mixer reads."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from rifflemix.compat import hooks_of


class ReadLinear(NonDynamicallyQuantizableLinear):
    """A linear map whose weight is read: dynamic quantisation, which would hide it, passes it by.

    It shows itself as the plain map that it otherwise is: what a model prints goes into the
    signatures of runs.
    """

    def _get_name(self) -> str:
        return "Linear"


def is_its_weight(linear: nn.Module) -> bool:
    """Whether reading the weight of a map that was a `ReadLinear` is as good as calling it.

    It is not where hooks compute the weight (pruning, normed weights), or where another module
    stands in its place (adapters): these act in a call.
    """
    return type(linear) is ReadLinear and not hooks_of(linear)
