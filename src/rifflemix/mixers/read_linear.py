"""A linear map whose weight its mixer reads."""

from __future__ import annotations

from torch.nn.modules.linear import NonDynamicallyQuantizableLinear


class ReadLinear(NonDynamicallyQuantizableLinear):
    """A linear map whose weight is read: dynamic quantisation, which would hide it, passes it by.

    It shows itself as the plain map that it otherwise is: what a model prints goes into the
    signatures of runs.
    """

    def _get_name(self) -> str:
        return "Linear"
