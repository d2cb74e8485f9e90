"""The family without argument checks, for callers that have made them: layers, and `api`."""

from __future__ import annotations

from torch import Tensor

from rifflemix.ops.butterfly import eager, reference
from rifflemix.ops.dispatch import Family

_FAMILY = Family(reference, eager)


def butterfly_split(
    x: Tensor, block: int, stride: int, dim: int = 1, backend: str = "auto"
) -> Tensor:
    """`rifflemix.ops.butterfly_split`; `dim` is not negative."""
    groups: Tensor = _FAMILY.pick(backend).butterfly_split(x, block, stride, dim)
    return groups


def butterfly_merge(y: Tensor, stride: int, dim: int = 1, backend: str = "auto") -> Tensor:
    """`rifflemix.ops.butterfly_merge`; `dim` is not negative."""
    merged: Tensor = _FAMILY.pick(backend).butterfly_merge(y, stride, dim)
    return merged


def block_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """`rifflemix.ops.block_linear`."""
    y: Tensor = _FAMILY.pick(backend).block_linear(x, weight, bias)
    return y
