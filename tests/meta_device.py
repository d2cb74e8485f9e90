"""Modules built without memory, and the two ways to give them some."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def emptied(module: nn.Module, like: nn.Module) -> nn.Module:
    """Memory that holds no numbers, then the parameters of another one."""
    torch.use_deterministic_algorithms(
        True
    )  # new memory is filled with NaN, or what is out of range
    try:
        module.to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    module.load_state_dict(like.state_dict())
    return module


def assigned(module: nn.Module, like: nn.Module) -> nn.Module:
    """The parameters of another one."""
    module.load_state_dict(like.state_dict(), assign=True)
    return module


ways_to_give_memory = pytest.mark.parametrize("give_memory", [emptied, assigned])
