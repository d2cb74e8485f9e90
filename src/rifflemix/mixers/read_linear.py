"""Linear layer for mixers that read its weight instead of calling it."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from rifflemix.compat import hooks_of


class ReadLinear(NonDynamicallyQuantizableLinear):
    """Linear layer with a readable weight, since dynamic quantization skips this class.

    Its printed name is `Linear`, because the printed model is part of the signature of a run.
    """

    def _get_name(self) -> str:
        return "Linear"


def is_its_weight(linear: nn.Module) -> bool:
    """Check that a mixer may read the weight instead of calling the layer.

    A call is required if hooks compute the weight (pruning, weight normalization), or if another
    module replaced the `ReadLinear` (adapters).
    """
    return type(linear) is ReadLinear and not hooks_of(linear)
