"""Compare block-diagonal linear layers with a dense block-diagonal matrix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rifflemix as rm
from rifflemix.ops import block_linear, butterfly_merge
from rifflemix.ops.butterfly.reference import split_indices
from rifflemix.ops.native import instruction_level

needs_kernels = pytest.mark.skipif(instruction_level() < 2, reason="needs the compiled kernels")
BACKENDS = ["reference", "eager", pytest.param("cpu", marks=needs_kernels)]


def butterfly_matrix(weight: Tensor, in_stride: int, out_stride: int) -> Tensor:
    """Build the dense (blocks * in, blocks * out) matrix of all blocks."""
    blocks, width, out = weight.shape
    matrix = weight.new_zeros(blocks * width, blocks * out)
    sources = split_indices(blocks * width, width, in_stride)
    targets = split_indices(blocks * out, out, out_stride)
    for k, block in enumerate(weight):
        for i, source in enumerate(sources[k]):
            matrix[source, targets[k]] = block[i]
    return matrix


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 19), st.integers(1, 19)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    lead=st.lists(st.integers(1, 3), max_size=3),
    with_bias=st.booleans(),
)
def test_equals_the_dense_matrix(
    sizes: tuple[int, int, int],
    strides: tuple[int, int],
    lead: list[int],
    with_bias: bool,
    backend: str,
) -> None:
    spans, width, out = sizes
    in_stride, out_stride = strides
    blocks = spans * math.lcm(*strides)
    x = torch.randn(*lead, blocks * width, dtype=torch.float64)
    weight = torch.randn(blocks, width, out, dtype=torch.float64)
    bias = torch.randn(blocks, out, dtype=torch.float64) if with_bias else None
    expected = x @ butterfly_matrix(weight, in_stride, out_stride)
    if bias is not None:
        expected = expected + butterfly_merge(bias, out_stride, dim=0)
    y = block_linear(x, weight, bias, in_stride=in_stride, out_stride=out_stride, backend=backend)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)


def results(
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, backend: str, **strides: int
) -> list[Tensor]:
    """Return the output and all gradients."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    y = block_linear(*leaves, backend=backend, **strides)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]


def laid_out(x: Tensor, layout: str) -> Tensor:
    """Return the same values in another memory layout."""
    if layout == "rows side by side":
        return x.mT.contiguous().mT
    if layout == "neither":
        return torch.stack((x, x), -1)[..., 0]
    if layout == "a part":
        return torch.cat((x, x[:, :, :3]), 2)[:, :, :-3]
    return x


@needs_kernels
@pytest.mark.parametrize("layout", ["plain", "rows side by side", "a part", "neither"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 63, 64, 65, 131])
def test_the_kernel_on_tiles_of_all_sizes(rows: int, layout: str) -> None:
    """The kernel is exact around tile and vector sizes, and for widths below a full vector."""
    torch.manual_seed(rows)
    for width, out in ((1, 1), (11, 5), (8, 17), (3, 33)):
        x = laid_out(torch.randn(3, rows, 4 * width, dtype=torch.float64), layout)
        grad = laid_out(torch.randn(3, rows, 4 * out, dtype=torch.float64), layout)
        weight = torch.randn(4, width, out, dtype=torch.float64)
        bias = torch.randn(4, out, dtype=torch.float64)
        strides = {"in_stride": 2, "out_stride": 4}
        found, expected = (
            results(x, weight, bias, grad, backend, **strides) for backend in ("cpu", "reference")
        )
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("features", [6, 120, 1200])
def test_the_kernel_in_other_dtypes(dtype: torch.dtype, features: int) -> None:
    """Sums over at most 140 rows use float32, so results differ by at most one rounding."""
    torch.manual_seed(features)
    x, grad = (torch.randn(2, 70, features).to(dtype) for _ in range(2))
    weight, bias = (
        torch.randn(features // 6, 6, 6).to(dtype),
        torch.randn(features // 6, 6).to(dtype),
    )
    found = results(x, weight, bias, grad, "cpu", in_stride=1)
    wide = [t.double() for t in (x, weight, bias, grad)]
    for ours, exact in zip(found, results(*wide, "reference"), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), exact, atol=5e-5, rtol=torch.finfo(dtype).eps)


@needs_kernels
def test_the_kernel_gives_the_same_bits_for_any_number_of_threads() -> None:
    x, grad = torch.randn(5, 700, 22), torch.randn(5, 700, 33)
    weight, bias = torch.randn(11, 2, 3), torch.randn(11, 3)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(x, weight, bias, grad, "cpu", out_stride=11))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@needs_kernels
def test_result_has_the_strides_of_the_input() -> None:
    """The result keeps the memory layout of the input, so stacked layers need no copy."""
    weight = torch.randn(4, 3, 5)
    rows_beside = torch.randn(2, 12, 40).mT
    y = block_linear(rows_beside, weight, backend="cpu")
    assert y.mT.is_contiguous()
    assert block_linear(rows_beside.contiguous(), weight, backend="cpu").is_contiguous()
    assert torch.equal(y, block_linear(rows_beside.contiguous(), weight, backend="cpu"))


@needs_kernels
def test_auto_uses_the_kernel_if_it_is_faster() -> None:
    large, small = torch.randn(600, 121), torch.randn(60, 121)
    with torch.profiler.profile() as profile:
        block_linear(large, torch.randn(11, 11, 11))
    assert "rifflemix::block_maps" in {event.key for event in profile.key_averages()}
    with torch.profiler.profile() as profile:
        block_linear(small, torch.randn(11, 11, 11))
        block_linear(torch.randn(600, 128), torch.randn(4, 32, 32))
    assert "rifflemix::block_maps" not in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients(backend: str) -> None:
    x = torch.randn(2, 3, 12, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def mapped(*leaves: Tensor) -> Tensor:
        return block_linear(*leaves, in_stride=2, out_stride=4, backend=backend)

    assert torch.autograd.gradcheck(mapped, (x, weight, bias))
    assert torch.autograd.gradgradcheck(mapped, (x, weight, bias))


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_requested_gradients_are_computed(backend: str) -> None:
    x, weight, bias = torch.randn(20, 6), torch.randn(2, 3, 4), torch.randn(2, 4)
    for asked in (x, weight, bias):
        asked.requires_grad_()
        block_linear(x, weight, bias, backend=backend).sum().backward()
        assert asked.grad is not None
        assert all(t.grad is None for t in (x, weight, bias) if t is not asked)
        asked.requires_grad_(False)
        asked.grad = None


def test_empty_input() -> None:
    for lead in ((0,), (2, 0), (0, 3)):
        x = torch.randn(*lead, 6, requires_grad=True)
        weight = torch.randn(2, 3, 4, requires_grad=True)
        y = block_linear(x, weight, in_stride=2)
        assert y.shape == (*lead, 8)
        y.sum().backward()
        assert torch.equal(weight.grad, torch.zeros(2, 3, 4))


@needs_kernels
def test_function_transforms_use_plain_torch() -> None:
    x, weight = torch.randn(5, 300, 121), torch.randn(11, 11, 11)
    mapped = torch.func.vmap(lambda one: block_linear(one, weight))(x)
    torch.testing.assert_close(mapped, block_linear(x, weight))
    gradient = torch.func.grad(lambda one: block_linear(one, weight).sum())(x)
    torch.testing.assert_close(gradient, block_linear(torch.ones_like(x), weight.mT))


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
        for bias in (None, torch.randn(2, 5)):
            x = torch.randn(3, 8, dtype=torch.bfloat16)
            assert block_linear(x, torch.randn(2, 4, 5), bias).dtype == torch.bfloat16
            assert block_linear(x.float(), torch.randn(2, 4, 5), bias).dtype == torch.bfloat16


X, WEIGHT = torch.randn(2, 6), torch.randn(2, 3, 4)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "named"),
    [
        (torch.randn(2, 7), WEIGHT, None, r"x: .*got \(2, 7\)"),
        (torch.tensor(1.0), WEIGHT, None, r"x: .*got \(\)"),
        (X, torch.randn(6, 4), None, r"weight: .*got \(6, 4\)"),
        (X, WEIGHT, torch.randn(8), r"bias: .*got \(8,\)"),
        (X, WEIGHT, torch.randn(2, 1, 4), r"bias: .*got \(2, 1, 4\)"),
        (X, WEIGHT.double(), None, r"weight: .*got torch\.float64"),
        (X, WEIGHT, torch.randn(2, 4).double(), r"bias: .*got torch\.float64"),
        (X, WEIGHT.to("meta"), None, "weight:"),
        (None, WEIGHT, None, "x: .*got NoneType"),
    ],
)
def test_bad_arguments_are_refused(x, weight, bias, named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        block_linear(x, weight, bias)


@pytest.mark.parametrize("name", ["in_stride", "out_stride"])
@pytest.mark.parametrize("stride", [0, -1, 4, 1.0, True, "2", None])
def test_bad_strides_are_refused(name: str, stride: Any) -> None:
    with pytest.raises(rm.InputError, match=f"^{name}:"):
        block_linear(torch.randn(2, 18), torch.randn(6, 3, 4), **{name: stride})


@needs_kernels
def test_gradients_over_a_million_rows_are_accurate() -> None:
    x, rows = torch.full((1, 1 << 20, 4), 0.3), 1 << 20
    weight, bias = torch.full((2, 2, 2), 0.7).requires_grad_(), torch.zeros(2, 2).requires_grad_()
    y = block_linear(x, weight, bias, backend="cpu")
    for_weight, for_bias = torch.autograd.grad(y, (weight, bias), torch.full_like(y, 0.1))
    tenth = float(torch.tensor(0.1))
    exact = rows * tenth * float(x[0, 0, 0])
    torch.testing.assert_close(for_weight, torch.full((2, 2, 2), exact), rtol=2e-6, atol=0)
    torch.testing.assert_close(for_bias, torch.full((2, 2), rows * tenth), rtol=2e-6, atol=0)
