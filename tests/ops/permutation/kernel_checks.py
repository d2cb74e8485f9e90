"""Comparison of the compiled permutation kernels with the eager backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from permutation_cases import tied
from torch import Tensor

from rifflemix.ops import (
    native,
    rank_filter,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ORDERS: dict[str, dict[str, Any]] = {
    "reference": {"order": "reference"},
    "ascending": {"order": "ascending"},
    "descending": {"order": "descending"},
    "mixed": {"descending": True},
}

needs_kernels = pytest.mark.skipif(
    native.instruction_level() < 3, reason="the compiled kernels, or AVX2, are missing"
)
Operator = Callable[..., Any]


def values(batch: int, length: int, channels: int, dtype: torch.dtype) -> Tensor:
    """Create values with some ties, zeros of either sign, infinities and NaN."""
    x = torch.randn(batch, length, channels).to(dtype)
    x = torch.where(torch.rand(x.shape) < 0.5, tied(batch, length, channels, dtype), x)
    return torch.where(torch.rand(x.shape) < 0.1, torch.full_like(x, float("nan")), x)


def same(a: Tensor, b: Tensor) -> bool:
    """Compare values, signs of zeros, and positions of NaN."""
    numbers = torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5))
    signs = torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())
    return numbers and signs and torch.equal(a.isnan(), b.isnan())


def check_filter(x: Tensor, ranks: Tensor, window_size: int) -> None:
    """Compare values and gradients. Integer weights make the sums of the gradient exact."""
    weight, x = torch.randint(-3, 4, x.shape).to(x), x.detach().requires_grad_()
    results = []
    for backend in ("eager", "cpu"):
        y = rank_filter(x, ranks, window_size, backend=backend)
        results.append((y, torch.autograd.grad(y, x, weight)[0]))
    assert all(map(same, *results))


def check(operator: Operator, x: Tensor, *arguments: Any, **options: Any) -> None:
    """Compare with eager: with and without indices, and with gradients."""
    weight = torch.randn(x.shape).to(x)
    x = x.detach().requires_grad_()
    expected, expected_index = operator(
        x, *arguments, return_indices=True, backend="eager", **options
    )
    (expected_gradient,) = torch.autograd.grad(expected, x, weight)
    y, index = operator(x, *arguments, return_indices=True, backend="cpu", **options)
    assert torch.equal(index, expected_index)
    for found in (y, operator(x, *arguments, backend="cpu", **options)):
        assert same(found, expected)
        assert torch.equal(torch.autograd.grad(found, x, weight)[0], expected_gradient)
    with torch.no_grad():
        y = operator(x, *arguments, backend="cpu", **options)
    assert same(y, expected)
    assert y.is_contiguous()


def options_of(order: str, channels: int) -> dict[str, Any]:
    if order == "mixed":
        return {"descending": torch.arange(channels) % 3 == 0}
    return ORDERS[order]


def mask_of(kind: int, length: int) -> Tensor | None:
    """Return no mask, a mask with little padding, or a mask with much padding."""
    return None if kind == 0 else torch.rand(2, length) < (0.1, 0.8)[kind - 1]
