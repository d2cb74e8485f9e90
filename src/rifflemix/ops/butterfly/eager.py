"""Layers of a block MLP, and butterfly operators as views with at most one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

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


def butterfly_split(x: Tensor, block: int, stride: int, dim: int) -> Tensor:
    """Reshape (.., n, ..) -> (.., n/block, block, ..); `dim` is not negative."""
    spans = x.shape[dim] // (block * stride)
    swapped = x.unflatten(dim, (spans, block, stride)).transpose(dim + 1, dim + 2)
    return swapped.flatten(dim, dim + 1)


def butterfly_merge(y: Tensor, stride: int, dim: int) -> Tensor:
    """Reshape (.., n/block, block, ..) -> (.., n, ..); `dim` is not negative."""
    spans = y.shape[dim] // stride
    return y.unflatten(dim, (spans, stride)).transpose(dim + 1, dim + 2).flatten(dim, dim + 2)


def block_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, in_stride: int, out_stride: int
) -> Tensor:
    """Compute one batched matrix product over the blocks."""
    groups = butterfly_split(x, weight.shape[1], in_stride, x.dim() - 1)
    y = torch.einsum("...ki,kio->...ko", groups, weight)
    y = y if bias is None else y + bias.to(y.dtype)  # autocast may have changed the dtype
    return butterfly_merge(y, out_stride, x.dim() - 1)


def block_mlp(x: Tensor, maps: Sequence[BlockMap]) -> Tensor:
    """Apply the layers one by one."""
    for weight, bias, in_stride, out_stride, activation in maps:
        x = block_linear(x, weight, bias, in_stride, out_stride)
        x = x if activation is None else _ACTIVATIONS[activation](x)
    return x


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "elu": functional.elu,
}
