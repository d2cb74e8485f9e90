"""Linear layer for mixers that read its weight instead of calling it."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from rifflemix.compat import hooks_of


class WeightReadLinear(NonDynamicallyQuantizableLinear):
    """Linear layer that dynamic quantization skips, so that its weight stays readable."""


def weight_is_plain(linear: nn.Module) -> bool:
    """Check that a mixer may read the weight instead of calling the layer.

    A call is required if hooks compute the weight (pruning, weight normalization), or if another
    module replaced the `WeightReadLinear` (adapters).
    """
    return type(linear) is WeightReadLinear and not hooks_of(linear)
