"""Arithmetic that needs more bits than the tensors at hand have."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


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
