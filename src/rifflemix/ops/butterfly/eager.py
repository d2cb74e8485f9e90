"""Butterfly operators as views: at most one copy, the batch dimension never folded away."""

from __future__ import annotations

import torch
from torch import Tensor


def butterfly_split(x: Tensor, block: int, stride: int, dim: int) -> Tensor:
    """(.., n, ..) -> (.., n/block, block, ..); `dim` is not negative."""
    spans = x.shape[dim] // (block * stride)
    swapped = x.unflatten(dim, (spans, block, stride)).transpose(dim + 1, dim + 2)
    y: Tensor = swapped.flatten(dim, dim + 1)
    return y


def butterfly_merge(y: Tensor, stride: int, dim: int) -> Tensor:
    """(.., n/block, block, ..) -> (.., n, ..); `dim` is not negative."""
    spans = y.shape[dim] // stride
    x: Tensor = y.unflatten(dim, (spans, stride)).transpose(dim + 1, dim + 2).flatten(dim, dim + 2)
    return x


def block_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One batched matrix product over the blocks."""
    blocks, width, _ = weight.shape
    y = torch.einsum("...ki,kio->...ko", x.unflatten(-1, (blocks, width)), weight)
    return (y if bias is None else y + bias).flatten(-2)
