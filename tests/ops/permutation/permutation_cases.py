"""Shared inputs and checks for the tests of the permutation operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

MASKS = {
    "trailing": [[0] * 7 + [1] * 5, [0] * 12, [0] + [1] * 11],
    "leading": [[1] * 4 + [0] * 8, [1] * 5 + [0] * 7, [0] * 12],
    "scattered": [[0, 1] * 6, [1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0], [0, 0, 1] * 4],
    "all": [[1] * 12, [0] * 12, [1] * 12],
}
MASK_TENSORS = {name: torch.tensor(rows).bool() for name, rows in MASKS.items()} | {"none": None}


def tied(batch: int, length: int, channels: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Create values with many ties, some infinities, and zeros of either sign."""
    x = torch.randint(-2, 3, (batch, length, channels)).to(dtype)
    x = torch.where(torch.rand(x.shape) < 0.1, float("inf") * x.sign().nan_to_num(1.0), x)
    x = torch.where(x.isnan(), torch.zeros_like(x), x)
    return torch.where(torch.rand(x.shape) < 0.2, -torch.zeros_like(x), x)


@st.composite
def tokens(draw: st.DrawFn, group_size: int | None = None) -> tuple[Tensor, Tensor | None, int]:
    """Draw (x, mask or None, num_groups), sometimes with ties, -0.0, infinities and NaN."""
    size = draw(st.integers(1, 5)) if group_size is None else group_size
    num_groups = draw(st.integers(1, 4))
    shape = (draw(st.integers(1, 3)), num_groups * size, 2 * draw(st.integers(1, 3)))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]))
    x = tied(*shape, dtype=dtype) if draw(st.booleans()) else torch.randn(shape).to(dtype)
    if draw(st.booleans()):
        x = torch.where(torch.rand(shape) < 0.2, torch.full_like(x, float("nan")), x)
    mask = torch.rand(shape[:2]) < draw(st.floats(0, 1)) if draw(st.booleans()) else None
    return x, mask, num_groups


def check_permutation(x: Tensor, y: Tensor, index: Tensor, mask: Tensor | None) -> None:
    """Check that `index` permutes positions, fixes padding, and produces `y`."""
    positions = torch.arange(x.shape[1])[:, None].expand_as(x)
    assert index.dtype == torch.int64
    assert index.shape == x.shape
    assert torch.equal(index.sort(dim=1).values, positions)
    expected = x.gather(1, index)
    if mask is not None:
        assert torch.equal(index[mask], positions[mask])
        expected = expected.masked_fill(mask.unsqueeze(-1), 0.0)
    assert y.dtype == x.dtype
    assert torch.equal(y.nan_to_num(7.5), expected.nan_to_num(7.5))
    assert torch.equal(y.isnan(), expected.isnan())


def in_turn(shapes: Sequence[Any], orders: Sequence[str]) -> list[Any]:
    """Combine all shapes and orders; mark all but one order per shape as slow."""
    return [
        pytest.param(shape, order, marks=[] if i % len(orders) == j else [pytest.mark.slow])
        for i, shape in enumerate(shapes)
        for j, order in enumerate(orders)
    ]
