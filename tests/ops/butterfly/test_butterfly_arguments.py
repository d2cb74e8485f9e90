"""Butterfly operators reject arguments of the wrong type and accept NumPy integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import block_linear, butterfly_merge, butterfly_split, butterfly_strides

BAD: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "block 4.0": ("block", lambda x: butterfly_split(x, 4.0, 1)),
    "stride 1.0": ("stride", lambda x: butterfly_split(x, 4, 1.0)),
    "stride True": ("stride", lambda x: butterfly_split(x, 4, True)),
    "dim 1.0": ("dim", lambda x: butterfly_split(x, 4, 1, dim=1.0)),
    "dim None": ("dim", lambda x: butterfly_merge(x, 1, dim=None)),
    "stride of merge": ("stride", lambda x: butterfly_merge(x, "1")),
    "length 12.0": ("length", lambda _: butterfly_strides(12.0, 4)),
    "length True": ("length", lambda _: butterfly_strides(True, 1)),
    "block None": ("block", lambda _: butterfly_strides(12, None)),
    "integers": ("x", lambda x: block_linear(x.long(), torch.ones(2, 3, 2, dtype=torch.int64))),
    "x a list": ("x", lambda _: block_linear([1.0], torch.ones(1, 1, 1))),
    "weight on meta": ("weight", lambda x: block_linear(x, torch.ones(2, 3, 2, device="meta"))),
    "weight in float64": ("weight", lambda x: block_linear(x, torch.ones(2, 3, 2).double())),
}


@pytest.mark.parametrize(("name", "call"), BAD.values(), ids=BAD)
def test_arguments_of_a_wrong_type_are_named(name: str, call: Callable[[Tensor], Any]) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected"):
        call(torch.randn(2, 8, 6))


def test_integers_of_numpy() -> None:
    x = torch.randn(2, 8, 6)
    one, two, four = np.int64(1), np.int32(2), np.uint8(4)
    split = butterfly_split(x, four, two, dim=one)
    assert torch.equal(split, butterfly_split(x, 4, 2))
    assert torch.equal(butterfly_merge(split, two, dim=one), x)
    strides = butterfly_strides(np.int64(12), four)
    assert strides == butterfly_strides(12, 4)
    assert all(type(stride) is int for stride in strides)
