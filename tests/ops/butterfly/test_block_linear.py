"""Block-diagonal linear maps against a dense block-diagonal matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rifflemix as rm
from rifflemix.ops import block_linear


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)),
    lead=st.lists(st.integers(1, 3), max_size=3),
    with_bias=st.booleans(),
    backend=st.sampled_from(["reference", "eager"]),
)
def test_equals_the_dense_matrix(
    sizes: tuple[int, int, int], lead: list[int], with_bias: bool, backend: str
) -> None:
    blocks, width, out = sizes
    x = torch.randn(*lead, blocks * width, dtype=torch.float64)
    weight = torch.randn(blocks, width, out, dtype=torch.float64)
    bias = torch.randn(blocks, out, dtype=torch.float64) if with_bias else None
    expected = x @ torch.block_diag(*weight)
    if bias is not None:
        expected = expected + bias.flatten()
    y = block_linear(x, weight, bias, backend=backend)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)


def test_gradcheck() -> None:
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(block_linear, (x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_follows_the_reference(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(3, 8), torch.randn(2, 4, 5), torch.randn(2, 5)
    x, weight, bias = (t.to(dtype) for t in (x, weight, bias))
    expected = block_linear(x.double(), weight.double(), bias.double(), backend="reference")
    y = block_linear(x, weight, bias)
    assert y.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(y.double(), expected, atol=tolerance, rtol=tolerance)


def test_autocast_may_mix_dtypes() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block_linear(torch.randn(3, 8, dtype=torch.bfloat16), torch.randn(2, 4, 5))
    assert y.dtype == torch.bfloat16


X, WEIGHT = torch.randn(2, 6), torch.randn(2, 3, 4)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "named"),
    [
        (torch.randn(2, 7), WEIGHT, None, "x: expected shape"),
        (torch.tensor(1.0), WEIGHT, None, "x: expected shape"),
        (X, torch.randn(6, 4), None, "weight: expected shape"),
        (X, WEIGHT, torch.randn(8), "bias: expected shape"),
        (X, WEIGHT, torch.randn(2, 1, 4), "bias: expected shape"),
        (X, WEIGHT.double(), None, "weight: expected dtype"),
        (X, WEIGHT, torch.randn(2, 4).double(), "bias: expected dtype"),
        (X, WEIGHT.to("meta"), None, "weight: expected device"),
        (None, WEIGHT, None, "x: expected a tensor"),
    ],
)
def test_bad_arguments(x, weight, bias, named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        block_linear(x, weight, bias)
