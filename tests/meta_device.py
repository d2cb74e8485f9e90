"""Two ways to allocate memory for modules on the meta device."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def emptied(module: nn.Module, like: nn.Module) -> nn.Module:
    """Allocate uninitialized memory, then load the parameters of `like`."""
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN or the largest integer
    try:
        module.to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    module.load_state_dict(like.state_dict())
    return module


def assigned(module: nn.Module, like: nn.Module) -> nn.Module:
    """Assign the parameters of `like`."""
    module.load_state_dict(like.state_dict(), assign=True)
    return module


ways_to_give_memory = pytest.mark.parametrize("give_memory", [emptied, assigned])
