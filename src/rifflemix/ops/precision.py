"""Arithmetic that needs a higher precision than the dtype of its inputs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from rifflemix.compat import is_known

# Tokens per piece in `sum_of_products`: torch adds products within a piece one after another.
_TOKENS_TOGETHER = 1024


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context that disables autocast on the device of `like`.

    The context does nothing on the meta device, because that device has no autocast.
    """
    kind = like.device.type
    if kind == "meta":
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def wide(x: Tensor) -> Tensor:
    """Convert `x` to float32 unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def wide_default() -> torch.dtype:
    """Return torch's default dtype, or float32 if the default has 16 bits.

    Use it to initialize parameters, because torch has no 16-bit factorizations, no 16-bit complex
    numbers and not all 16-bit distributions.
    """
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def as_default(x: Tensor) -> Tensor:
    """Convert `x` to torch's default dtype, the dtype of parameters."""
    return x.to(torch.get_default_dtype())


def sum_of_products(x: Tensor, y: Tensor) -> Tensor:
    """Compute x^T y over the tokens: (..., N, M), (..., N, D) -> (..., M, D).

    Long sequences are summed in pieces, because a float32 matrix product loses precision as N
    grows.
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
