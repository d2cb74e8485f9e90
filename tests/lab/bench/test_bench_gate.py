from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor

from rifflemix.lab.bench.gate import (
    check,
    check_finite,
    output_and_gradients,
    relative_error,
)


def test_error_is_relative_and_the_largest_of_all_tensors() -> None:
    expected = [torch.full((4,), 100.0), torch.full((9,), 2.0)]
    actual = [torch.full((4,), 101.0), torch.full((9,), 2.1)]
    assert relative_error(actual, expected) == pytest.approx(0.05)


def test_rounding_error_of_a_zero_gradient_does_not_count() -> None:
    expected = [torch.ones(10), torch.zeros(10)]
    assert relative_error([torch.ones(10), torch.full((10,), 1e-9)], expected) < 1e-5
    assert relative_error([torch.ones(10), torch.full((10,), 0.1)], expected) > 1


@pytest.mark.parametrize(
    "actual", [torch.ones(3), torch.full((2,), math.nan), torch.full((2,), math.inf)], ids=repr
)
def test_wrong_shapes_and_nonfinite_values_fail(actual: Tensor) -> None:
    found = check("truth", "(1, 2)", [actual], [torch.ones(2)], 1e9)
    assert not found.passed
    assert found.error is None
    assert re.search(r"\btruth\b.*\b1e\+09$", found.failure())


@pytest.mark.parametrize(("error", "passed"), [(0.9e-3, True), (1.1e-3, False)])
def test_the_tolerance_decides(error: float, passed: bool) -> None:
    found = check("truth", "", [torch.ones(5) + error], [torch.ones(5)], 1e-3)
    assert found.passed is passed
    assert found.error == pytest.approx(error, rel=1e-3)


class WrongBackward(torch.autograd.Function):
    """Sort, but return the gradients in the unsorted order."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.sort().values

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


def test_wrong_permutation_of_gradients_is_detected() -> None:
    x = torch.randn(64, requires_grad=True)
    right = output_and_gradients(lambda: x.sort().values, [x])
    wrong = output_and_gradients(lambda: WrongBackward.apply(x), [x])
    assert torch.equal(right[0], wrong[0])
    assert relative_error(wrong, right) > 0.1


def test_all_dtypes_get_the_same_gradient() -> None:
    x = torch.arange(32.0, requires_grad=True)
    grads = [
        output_and_gradients(lambda dtype=dtype: x.to(dtype) * 1, [x])[1].double()
        for dtype in (torch.bfloat16, torch.float32, torch.float64)
    ]
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])
    assert grads[0].unique().numel() > 16


@pytest.mark.parametrize(
    ("outputs", "passed"),
    [
        ([torch.ones(2, 3), torch.ones(7)], True),
        ([torch.ones(3, 2), torch.ones(7)], False),
        ([torch.ones(2, 3), torch.full((7,), math.nan)], False),
    ],
    ids=["good", "shape", "nan"],
)
def test_packages_must_keep_the_shape_and_be_finite(outputs: list[Tensor], passed: bool) -> None:
    assert check_finite("", "", (2, 3), outputs).passed is passed
