"""Call models of any library with the inputs that users have."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.models.base import call_model, on_device_of


class Sum(nn.Module):
    """Add the inputs; the parameter is on the device given to the constructor."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, device=device))

    def forward(self, x: Tensor, y: Tensor | None = None, scale: float = 1.0) -> Tensor:
        return scale * (x if y is None else x + y) * self.weight


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (torch.ones(2), 1.0),
        ((torch.ones(2), torch.ones(2)), 2.0),
        ([torch.ones(2), torch.ones(2), 3.0], 6.0),
        ({"x": torch.ones(2), "scale": 4.0}, 4.0),
        (UserDict(x=torch.ones(2), y=torch.ones(2)), 2.0),
    ],
    ids=["tensor", "tuple", "list", "dict", "mapping"],
)
def test_inputs_may_be_tensors_tuples_or_dicts(inputs: Any, expected: float) -> None:
    assert torch.equal(call_model(Sum(), inputs), torch.full((2,), expected))
    there = call_model(Sum("meta"), inputs)
    assert there.is_meta
    assert there.shape == (2,)


def test_invalid_inputs_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"^batches:"):
        call_model(Sum(), 3, name="batches")


def test_model_without_parameters_keeps_the_device_of_inputs() -> None:
    x = torch.ones(2)
    assert on_device_of(nn.Identity(), x) is x
    assert call_model(nn.Identity(), (x,)) is x
