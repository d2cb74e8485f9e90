"""Models and mixers with random weights."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def perturb(module: M, scale: float) -> M:
    """Add noise to all parameters, so that each of them affects the outputs."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return module
