"""The layers of a block MLP."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

ACTIVATIONS = ("gelu", "elu")


class BlockMap(NamedTuple):
    """A block-diagonal linear layer and the activation after it.

    Attributes:
        weight: (blocks, in, out).
        bias: (blocks, out) or None.
        in_stride: stride of the input features, see `block_linear`.
        out_stride: stride of the output features, see `block_linear`.
        activation: "gelu", x Phi(x); "elu", exp(x) - 1 below 0; or None.

    Example:
        >>> import torch, rifflemix as rm
        >>> layer = rm.ops.BlockMap(torch.randn(4, 8, 16), activation="gelu")
        >>> rm.ops.block_mlp(torch.randn(2, 32), [layer]).shape
        torch.Size([2, 64])
    """

    weight: Tensor
    bias: Tensor | None = None
    in_stride: int = 1
    out_stride: int = 1
    activation: str | None = None
