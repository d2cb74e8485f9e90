"""Arithmetic that autocast must leave alone."""

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
