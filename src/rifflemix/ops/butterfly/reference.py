"""Butterfly operators as literal implementations, with explicit indices and loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rifflemix.ops.butterfly.eager import BlockMap


def split_indices(length: int, block: int, stride: int) -> list[list[int]]:
    """List the positions of each group.

    Group q * stride + r contains the positions q * block * stride + r + j * stride.
    """
    groups = []
    for start in range(0, length, block * stride):
        for base in range(start, start + stride):
            groups.append([base + j * stride for j in range(block)])  # noqa: PERF401 (literal)
    return groups


def butterfly_split(x: Tensor, block: int, stride: int, dim: int) -> Tensor:
    """Gather the positions of every group; `dim` is not negative."""
    index = torch.tensor(split_indices(x.shape[dim], block, stride), device=x.device)
    return x.index_select(dim, index.flatten()).unflatten(dim, tuple(index.shape))


def butterfly_merge(y: Tensor, stride: int, dim: int) -> Tensor:
    """Invert `butterfly_split`; `dim` is not negative."""
    groups, block = y.shape[dim], y.shape[dim + 1]
    came_to = [0] * (groups * block)
    for g, group in enumerate(split_indices(groups * block, block, stride)):
        for j, position in enumerate(group):
            came_to[position] = g * block + j
    return y.flatten(dim, dim + 1).index_select(dim, torch.tensor(came_to, device=y.device))


def block_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, in_stride: int, out_stride: int
) -> Tensor:
    """Compute one matrix product per block and merge the results."""
    blocks, width, _ = weight.shape
    groups = butterfly_split(x, width, in_stride, x.dim() - 1)
    outputs = []
    for k in range(blocks):
        y = groups[..., k, :] @ weight[k]
        outputs.append(y if bias is None else y + bias[k])
    return butterfly_merge(torch.stack(outputs, dim=-2), out_stride, x.dim() - 1)


def block_mlp(x: Tensor, maps: Sequence[BlockMap]) -> Tensor:
    """Apply each layer, then its activation."""
    for weight, bias, in_stride, out_stride, activation in maps:
        x = block_linear(x, weight, bias, in_stride, out_stride)
        if activation == "gelu":
            x = x * (1 + torch.erf(x / math.sqrt(2))) / 2
        elif activation == "elu":
            x = torch.where(x > 0, x, torch.expm1(x.clamp(max=0)))
    return x
