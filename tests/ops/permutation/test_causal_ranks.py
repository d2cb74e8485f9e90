"""Causal shift and rank filter: equation, ties, gradients, kernels, invalid arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from permutation_cases import tied
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import causal_shift, rank_filter
from rifflemix.ops.permutation import cpu

needs_kernels = pytest.mark.skipif(not cpu.filters(2), reason="no compiled kernels")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def values(shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """Create values with many ties, zeros of either sign, infinities and NaN."""
    x = torch.randn(shape).to(dtype)
    x = torch.where(torch.rand(shape) < 0.5, tied(*shape, dtype=dtype), x)
    return torch.where(torch.rand(shape) < 0.05, torch.full_like(x, float("nan")), x)


def same(a: Tensor, b: Tensor) -> bool:
    """Compare values, signs of zeros, and positions of NaN."""
    return torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5)) and bool(
        ((a.signbit() == b.signbit()) | a.isnan()).all()
    )


def gradient(y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of x, with zeros for tokens that the output does not use."""
    return torch.autograd.grad(y + 0.0 * x.nan_to_num(0.0, 0.0, 0.0), x, weight)[0]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_eager_equals_the_equation(data: st.DataObject) -> None:
    batch, length, channels, size = (data.draw(st.integers(1, most)) for most in (2, 9, 4, 6))
    torch.manual_seed(data.draw(st.integers(0, 999)))
    dtype = data.draw(st.sampled_from([torch.float64, *DTYPES]))
    x = values((batch, length, channels), dtype).requires_grad_()
    # Sums of integers are exact in any order.
    weight = torch.randint(-3, 4, x.shape).to(dtype)
    ranks, steps = torch.randint(size, (channels,)), torch.randint(length + 3, (channels,))
    for operator, arguments in ((rank_filter, (ranks, size)), (causal_shift, (steps,))):
        expected = operator(x, *arguments, backend="reference")
        found = operator(x, *arguments, backend="eager")
        assert same(found, expected)
        assert torch.equal(gradient(found, x, weight), gradient(expected, x, weight))


def test_windows_of_known_numbers() -> None:
    x = torch.tensor([3.0, -1.0, 4.0, -1.0, 5.0]).view(1, 5, 1).repeat(1, 1, 3)
    y = rank_filter(x, [0, 1, 2], 3)[0].T
    assert y.tolist() == [[0, -1, -1, -1, -1], [0, 0, 3, -1, 4], [3, 3, 4, 4, 5]]
    assert causal_shift(x, [0, 2, 7])[0].T.tolist() == [
        [3, -1, 4, -1, 5],
        [0, 0, 3, -1, 4],
        [0, 0, 0, 0, 0],
    ]


def test_of_equal_tokens_the_earlier_has_the_lower_rank() -> None:
    x = torch.zeros(1, 4, 3, dtype=torch.float64, requires_grad=True)
    rank_filter(x, [0, 1, 2], 3).sum().backward()
    assert x.grad is not None
    assert x.grad[0].T.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_gradient_is_zero_for_unselected_tokens(backend: str) -> None:
    x = torch.randn(1, 1, 2, requires_grad=True)
    y = rank_filter(x, [3, 4], 8, backend=backend)
    assert not y.any()
    (found,) = torch.autograd.grad(y.sum(), x)
    assert not found.any()


def test_windows_of_two_are_minimum_and_maximum_of_neighbours() -> None:
    x = torch.randn(2, 30, 4)
    before = torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    y = rank_filter(x, [0, 1, 0, 1], 2)
    assert torch.equal(y[..., ::2], torch.minimum(before, x)[..., ::2])
    assert torch.equal(y[..., 1::2], torch.maximum(before, x)[..., 1::2])


@pytest.mark.parametrize("size", [2, 3, 8])
def test_token_affects_only_its_window(size: int) -> None:
    """With J = 0, token m reaches exactly the tokens m..m+G-1, at every position."""
    length, channels = 17, 2 * size
    x = torch.randn(1, length, channels, dtype=torch.float64)
    ranks, steps = torch.arange(channels) % size, torch.arange(channels) // size * 3
    y = rank_filter(causal_shift(x, steps), ranks, size)
    for position in range(length):
        moved = x.clone()
        moved[:, position] += 1000  # now the highest rank
        change = (rank_filter(causal_shift(moved, steps), ranks, size) - y)[0] != 0
        n = torch.arange(length)[:, None] - steps
        assert not change[(n < position) | (n >= position + size)].any()
        assert change[position : position + size, size - 1].all()


def test_numerical_gradients() -> None:
    x = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        return rank_filter(causal_shift(x, [0, 1, 3, 9]), [0, 2, 1, 0], 3)

    assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(run, (x,))


# Compiled kernel.

SIZES = (1, 2, 3, 5, 8, 21, 256)
SHAPES = ((2, 40, 5), (1, 300, 17), (3, 1, 8), (1, 1100, 130), (0, 4, 3))


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel_equals_eager(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Sizes cover adjacent chunks, partial vectors, and windows longer than the sequence."""
    for size in SIZES if shape[1] < 100 else (2, 7):
        x = values(shape, dtype)
        if size % 2:
            x = x.transpose(0, 1).contiguous().transpose(0, 1)
        x.requires_grad_()
        ranks = torch.randint(size, (shape[2],))
        expected = rank_filter(x, ranks, size, backend="eager")
        found = rank_filter(x, ranks, size, backend="cpu")
        assert same(found, expected)
        weight = torch.randint(-3, 4, shape).to(dtype)
        assert torch.equal(gradient(found, x, weight), gradient(expected, x, weight))
        with torch.no_grad():
            assert same(rank_filter(x, ranks, size, backend="cpu"), expected)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_short_windows_with_nan_zeros_and_ties(dtype: torch.dtype) -> None:
    """A NaN, a -0.0 next to a 0.0, and ties each occur in a separate vector of channels."""
    shape = (2, 45, 100)
    for size in range(2, 9):
        x = torch.randn(shape).to(dtype)
        x[0, 17, 3], x[1, 9, 40], x[1, 11:13, 40] = float("nan"), -0.0, 0.0
        x[0, 20:30, 70:73] = x[0, 20, 70]
        x.requires_grad_()
        ranks = torch.randint(size, (shape[2],))
        expected = rank_filter(x, ranks, size, backend="eager")
        weight = torch.randint(-3, 4, shape).to(dtype)
        found = rank_filter(x, ranks, size, backend="cpu")
        assert same(found, expected)
        assert torch.equal(gradient(found, x, weight), gradient(expected, x, weight))
        with torch.no_grad():
            assert same(rank_filter(x, ranks, size, backend="cpu"), expected)


@needs_kernels
def test_kernel_with_several_threads() -> None:
    x = torch.randn(2, 3000, 200, requires_grad=True)
    ranks, threads = torch.arange(200) % 4, torch.get_num_threads()
    results = []
    try:
        for count in (1, 5):
            torch.set_num_threads(count)
            y = rank_filter(x, ranks, 4, backend="cpu")
            results.append((y.detach(), gradient(y, x, y.detach())))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


@needs_kernels
def test_gradient_of_the_kernel_s_gradient() -> None:
    x = torch.randn(1, 9, 6, requires_grad=True)
    weight = torch.randn(1, 9, 6, requires_grad=True)
    second = []
    for backend in ("cpu", "eager"):
        y = rank_filter(x, [0, 1, 2, 0, 1, 2], 3, backend=backend)
        (first,) = torch.autograd.grad(y, x, weight, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), weight)[0])
    torch.testing.assert_close(*second)


@needs_kernels
@pytest.mark.slow
def test_registered_operators() -> None:
    x = torch.randn(2, 6, 4, requires_grad=True)
    ranks = torch.tensor([0, 1, 2, 1])
    torch.library.opcheck(cpu._rank_filter.overload, (x, ranks, 3, True))
    back = torch.randint(3, (2, 6, 4), dtype=torch.uint8)
    torch.library.opcheck(cpu._collect.overload, (x, back, 3))


BAD: dict[str, tuple[Any, str]] = {
    "steps below 0": (lambda x: causal_shift(x, [0, -1, 2]), r"steps: .*\b0\b.*got -1\b"),
    "steps of two channels": (lambda x: causal_shift(x, [0, 1]), r"steps: .*got \(2,\)"),
    "rank of no window": (
        lambda x: rank_filter(x, [0, 1, 2], 2),
        r"ranks: .*\b0\b.*\b1\b.*got 2\b",
    ),
    "rank below 0": (lambda x: rank_filter(x, [-1, 0, 0], 2), r"ranks: .*\b0\b.*\b1\b.*got -1\b"),
    "fractions": (lambda x: rank_filter(x, torch.zeros(3), 2), r"ranks: .*got torch\.float32"),
    "no window": (lambda x: rank_filter(x, [0, 0, 0], 0), "window_size: expected"),
    "integers": (lambda x: rank_filter(x.long(), [0, 0, 0], 2), r"x: .*got torch\.int64"),
    "a kernel's window": (lambda x: rank_filter(x, [0] * 3, 257, backend="cpu"), "backend"),
}


@pytest.mark.parametrize(("call", "says"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused(call: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call(torch.randn(2, 5, 3))
