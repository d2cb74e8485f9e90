"""Long convolutions against dense Toeplitz matrices; exponential kernels; the linear scan."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rifflemix.mixers._convolution.long_convolution import (
    circular_convolve,
    circular_correlate,
    fft_convolution,
)
from rifflemix.mixers._convolution.state_space import ComplexPair, ExponentialKernel, linear_scan


def dense(
    x: Tensor, forward: Tensor, backward: Tensor | None, backward_from: str = "next"
) -> Tensor:
    """Compute the double sum with one (N, N) matrix per channel."""
    length = x.shape[1]
    matrix = x.new_zeros(x.shape[2], length, length)
    skip = 0 if backward_from == "present" else 1
    for n in range(length):
        for m in range(length):
            if m <= n:
                matrix[:, n, m] += forward[:, n - m]
            if backward is not None and m >= n + skip:
                matrix[:, n, m] += backward[:, m - n - skip]
    return torch.einsum("cnm,bmc->bnc", matrix, x)


@pytest.mark.parametrize("form", ["causal", "present", "next"])
@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_equals_the_dense_matrix(length: int, form: str) -> None:
    x = torch.randn(2, length, 3, dtype=torch.float64)
    forward, backward = torch.randn(2, 3, length, dtype=torch.float64)
    later = None if form == "causal" else backward
    start = "next" if form == "causal" else form
    y = fft_convolution(x, forward, later, backward_from=start)
    torch.testing.assert_close(y, dense(x, forward, later, start), atol=1e-12, rtol=1e-12)


def test_channel_blocks_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 9, 7, dtype=torch.float64, requires_grad=True)
    forward = torch.randn(7, 9, dtype=torch.float64, requires_grad=True)
    results = []
    for limit in (10**6, 1, 40):
        monkeypatch.setattr(
            "rifflemix.mixers._convolution.long_convolution._NUMBERS_IN_CACHE", limit
        )
        y = fft_convolution(x, forward)
        results.append((y.detach(), *torch.autograd.grad(y.square().sum(), (x, forward))))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-12, rtol=1e-12)


def test_first_and_second_gradients() -> None:
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    forward, backward = torch.randn(2, 3, 4, dtype=torch.float64).requires_grad_().unbind(0)
    assert torch.autograd.gradcheck(fft_convolution, (x, forward, backward))
    assert torch.autograd.gradgradcheck(fft_convolution, (x, forward, backward))


def test_operators_pass_opcheck() -> None:
    x, y = (torch.randn(2, 5, 3, requires_grad=True) for _ in range(2))
    torch.library.opcheck(circular_convolve.overload, (x, torch.randn(3, 10, requires_grad=True)))
    torch.library.opcheck(circular_correlate.overload, (x, y, 10))


def test_half_precision_is_computed_in_float32() -> None:
    x = torch.randn(2, 300, 4).bfloat16()
    forward = torch.randn(4, 300)
    y = fft_convolution(x, forward)
    assert y.dtype == torch.bfloat16
    expected = fft_convolution(x.double(), forward.double())
    torch.testing.assert_close(y.double(), expected, atol=1e-3, rtol=0.005)


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("forward", {"forward": torch.randn(3, 4)}),
        ("backward", {"backward": torch.randn(5, 3)}),
        ("backward_from", {"backward_from": "last"}),
        ("x", {"x": torch.randn(5, 3)}),
    ],
)
def test_bad_arguments_are_named(named: str, change: dict[str, object]) -> None:
    good = {"x": torch.randn(1, 5, 3), "forward": torch.randn(3, 5), **change}
    with pytest.raises(ValueError, match=f"^{named}:"):
        fft_convolution(**good)  # type: ignore[arg-type]


def some_kernel(complex_ratios: bool) -> tuple[ExponentialKernel, Tensor, Tensor]:
    a = torch.complex(-0.02 * torch.rand(3, 4).double(), 3 * torch.randn(3, 4).double())
    w = torch.randn(3, 4, dtype=torch.complex128)
    if not complex_ratios:
        return ExponentialKernel(a.real, w.real), a.real, w.real
    return ExponentialKernel(a.real, w.real, a.imag, w.imag), a, w


@pytest.mark.parametrize("complex_ratios", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("length", [1, 7, 64, 65, 400])
def test_kernel_is_the_sum_of_exponentials(length: int, complex_ratios: bool) -> None:
    kernel, a, w = some_kernel(complex_ratios)
    positions = torch.arange(length, dtype=torch.float64)
    expected = (w.unsqueeze(-1) * torch.exp(a.unsqueeze(-1) * positions)).sum(1)
    expected = expected.real if complex_ratios else expected
    torch.testing.assert_close(kernel.values(length), expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("complex_ratios", [False, True], ids=["real", "complex"])
def test_recurrence_equals_the_convolution(complex_ratios: bool) -> None:
    kernel, _, _ = some_kernel(complex_ratios)
    x = torch.randn(2, 19, 3, dtype=torch.float64)
    state, outputs = kernel.init_state(2), []
    for token in x.unbind(1):
        y, state = kernel.step(token, state)
        outputs.append(y)
    whole = fft_convolution(x, kernel.values(19))
    torch.testing.assert_close(torch.stack(outputs, 1), whole, atol=1e-11, rtol=1e-11)


def test_kernel_stays_float32_under_autocast() -> None:
    kernel, _, _ = some_kernel(True)
    single = ExponentialKernel(*(part.float() for part in kernel))
    with torch.autocast("cpu", torch.bfloat16):
        values = single.values(300)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, single.values(300))


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13, 64, 77])
def test_scan_equals_the_recurrence(length: int) -> None:
    ratio = torch.polar(torch.rand(4).double(), 6 * torch.rand(4).double())
    inputs = torch.randn(2, length, 4, dtype=torch.complex128)
    h, expected = torch.zeros(2, 4, dtype=torch.complex128), []
    for token in inputs.unbind(1):
        h = ratio * h + token
        expected.append(h)
    states = linear_scan(ComplexPair(ratio.real, ratio.imag), ComplexPair(inputs.real, inputs.imag))
    torch.testing.assert_close(torch.complex(*states), torch.stack(expected, 1))


def test_pairs_compute_as_complex_numbers() -> None:
    a, b = torch.randn(2, 6, dtype=torch.complex128).unbind(0)
    left, right = ComplexPair(a.real, a.imag), ComplexPair(b.real, b.imag)
    for pair, value in [
        (left.plus(right), a + b),
        (left.times(right), a * b),
        (left.over(right), a / b),
        (left.scaled(3.0), 3 * a),
        (left.exp(), a.exp()),
        (left.expm1(), a.exp() - 1),
    ]:
        torch.testing.assert_close(torch.complex(*pair), value)
    tiny = ComplexPair(torch.tensor([-3e-7]), torch.tensor([2e-7])).expm1()
    torch.testing.assert_close(tiny.stacked(), torch.tensor([[-3e-7, 2e-7]]), atol=0, rtol=1e-5)
