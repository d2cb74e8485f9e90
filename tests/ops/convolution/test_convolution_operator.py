"""`short_convolution`: values, gradients, dtypes, layouts, long sums and threads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rifflemix.ops.convolution import cpu
from rifflemix.ops.convolution.backends import short_convolution

ONE = torch.ones(1, 1, 1)
NO_KERNELS = not cpu.supports(ONE, ONE[0], None)
needs_kernels = pytest.mark.skipif(NO_KERNELS, reason="needs the compiled kernels")
FAST = ("eager", pytest.param("cpu", marks=needs_kernels))


def arguments(
    batch: int, length: int, channels: int, taps: int, *, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw tokens with other channels between them, factors and a bias."""
    wide = torch.promote_types(dtype, torch.float32)
    x = torch.randn(batch, length, 2 * channels).to(dtype)[..., channels:]
    return x, torch.randn(taps, channels, dtype=wide), torch.randn(channels, dtype=wide)


def with_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, first: int, length: int, backend: str
) -> list[Tensor]:
    """Return the output and the gradients of all tensors."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    bias = None if bias is None else leaves[2]
    y = short_convolution(leaves[0], leaves[1], bias, first, length, backend)
    if not y.requires_grad:  # the reference reads nothing
        return [y, *map(torch.zeros_like, leaves)]
    grad = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad, materialize_grads=True)]


@pytest.mark.parametrize("backend", FAST)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_backends_equal_the_reference(backend: str, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    batch, length, channels, taps, outputs = (
        data.draw(st.integers(1, most)) for most in (3, 9, 40, 5, 9)
    )
    x, weight, bias = arguments(batch, length, channels, taps)
    settings_ = (data.draw(st.integers(-12, 12)), outputs)
    given_bias = data.draw(st.sampled_from((bias, None)))
    found = with_gradients(x, weight, given_bias, *settings_, backend)
    expected = with_gradients(x, weight, given_bias, *settings_, "reference")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(("length", "channels", "taps"), [(200, 33, 4), (65, 300, 3), (1, 8, 4)])
def test_equals_causal_convolution_of_torch(
    backend: str, length: int, channels: int, taps: int
) -> None:
    x, weight, bias = arguments(2, length, channels, taps)
    found = short_convolution(x, weight, bias, 1 - taps, length, backend)
    before = F.pad(x.mT, (taps - 1, 0))
    expected = F.conv1d(before, weight.mT.unsqueeze(1), bias, groups=channels).mT
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_backends_round_once(dtype: torch.dtype, backend: str) -> None:
    """The factors stay wide, the sums are wide, and only the result has the dtype of the tokens."""
    x, weight, bias = arguments(2, 70, 37, 4, dtype=dtype)
    found = with_gradients(x, weight, bias, -3, 70, backend)
    assert [t.dtype for t in found] == [dtype, dtype, torch.float32, torch.float32]
    grad = torch.linspace(-1, 1, found[0].numel(), dtype=dtype).view(2, 70, 37).double()
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    y = short_convolution(*exact, -3, 70, "reference")
    expected = [y.detach(), *torch.autograd.grad(y, exact, grad)]
    for value, truth in zip(found, expected, strict=True):
        # A sum in float32 of up to 140 products, and one rounding of the result.
        close = torch.finfo(value.dtype).eps
        torch.testing.assert_close(value.double(), truth, rtol=close, atol=1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_second_order_gradients(backend: str) -> None:
    leaves = [t.requires_grad_() for t in arguments(2, 5, 3, 3)]

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return short_convolution(x, weight, bias, -1, 5, backend)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


@needs_kernels
@pytest.mark.parametrize("needed", [0, 1, 2])
def test_gradient_of_one_input_only(needed: int) -> None:
    given_ = arguments(2, 9, 5, 4)
    everything = with_gradients(*given_, -3, 9, "cpu")
    leaves = list(given_)
    leaves[needed] = leaves[needed].clone().requires_grad_()
    y = short_convolution(*leaves, -3, 9, "cpu")
    grad = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    (found,) = torch.autograd.grad(y, leaves[needed], grad)
    assert torch.equal(found, everything[1 + needed])


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_empty_batch_and_no_outputs(backend: str) -> None:
    _, weight, bias = arguments(1, 4, 6, 3)
    assert (
        short_convolution(torch.ones(0, 4, 6).double(), weight, bias, -2, 4, backend).numel() == 0
    )
    if backend != "reference":
        x = torch.ones(2, 4, 6).double()
        assert short_convolution(x, weight, bias, -2, 0, backend).shape == (2, 0, 6)


@needs_kernels
def test_sums_over_many_tokens_are_accurate() -> None:
    """A float32 sum of 300,000 equal numbers would lose four digits."""
    x = torch.full((1, 300_000, 1), 0.1)
    weight, bias = torch.ones(1, 1, requires_grad=True), torch.ones(1, requires_grad=True)
    y = short_convolution(x, weight, bias, 0, x.shape[1], "cpu")
    of_weight, of_bias = torch.autograd.grad(y, (weight, bias), torch.full_like(y, 0.3))
    factor = torch.tensor(0.3).double()
    assert abs(of_bias.item() / (300_000 * factor).item() - 1) < 1e-6
    assert abs(of_weight.item() / (300_000 * factor * x[0, 0, 0]).item() - 1) < 1e-6


@needs_kernels
def test_threads_do_not_change_results() -> None:
    given_ = arguments(3, 300, 70, 4, dtype=torch.float32)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(with_gradients(*given_, -3, 300, "cpu"))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@needs_kernels
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_memory_layout_does_not_change_results(order: tuple[int, int, int]) -> None:
    x, weight, bias = arguments(3, 20, 11, 4)
    places = [order.index(d) for d in range(3)]
    moved = x.permute(order).contiguous().permute(places)
    assert torch.equal(
        short_convolution(moved, weight.mT.contiguous().mT, bias, -3, 20, "cpu"),
        short_convolution(x, weight, bias, -3, 20, "cpu"),
    )
