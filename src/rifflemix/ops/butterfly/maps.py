"""What a block MLP is made of."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

ACTIVATIONS = ("gelu", "elu")


class BlockMap(NamedTuple):
    """A block-diagonal map, and the activation after it.

    Attributes:
        weight: (blocks, in, out).
        bias: (blocks, out) or None.
        in_stride: of the features that come in, see `block_linear`.
        out_stride: of those that go out.
        activation: "gelu", x Phi(x); "elu", exp(x) - 1 below 0; or None.
    """

    weight: Tensor
    bias: Tensor | None = None
    in_stride: int = 1
    out_stride: int = 1
    activation: str | None = None
