"""Arithmetic that needs more bits than the tensors at hand have."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from rifflemix.compat import is_known

# Tokens whose products a matrix product of torch's adds one after another.
_TOKENS_TOGETHER = 1024


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast is off on the tensor's device; the meta device has none."""
    kind = like.device.type
    if kind == "meta":
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def wide_default() -> torch.dtype:
    """Torch's default dtype, or float32 where that has 16 bits: for what parameters start from.

    Factorisations, complex numbers and some distributions have no form in 16 bits.
    """
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def as_default(x: Tensor) -> Tensor:
    """`x` in torch's default dtype, as parameters are."""
    return x.to(torch.get_default_dtype())


def sum_of_products(x: Tensor, y: Tensor) -> Tensor:
    """Sum over the tokens: x^T y, (..., N, M) and (..., N, D) -> (..., M, D).

    A long sequence is summed in pieces, since a matrix product in float32 loses digits with N.
    """
    length = x.shape[-2]
    if not is_known(length) or length <= _TOKENS_TOGETHER:
        return x.mT @ y
    whole = length - length % _TOKENS_TOGETHER
    pieces = [t.narrow(-2, 0, whole).unflatten(-2, (-1, _TOKENS_TOGETHER)) for t in (x, y)]
    total: Tensor = (pieces[0].mT @ pieces[1]).sum(-3)
    if whole == length:
        return total
    last = length - whole
    return total + x.narrow(-2, whole, last).mT @ y.narrow(-2, whole, last)
