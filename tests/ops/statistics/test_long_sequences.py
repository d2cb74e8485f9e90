"""Sums over tens of millions of tokens keep float32 accuracy, in values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rifflemix.ops import causal_token_statistics, token_statistics
from rifflemix.ops.native import library

A = torch.tensor([0.1, 1.3, -0.7])
"""Value of the only feature of each head. All tokens are equal, so rounding errors add up."""
WEIGHT = torch.tensor([1.0, -2.0, 0.5])
KERNELS = pytest.mark.skipif(library() is None, reason="needs the compiled kernels")
RUNS = [
    ("eager", 1 << 18),
    pytest.param("cpu", 1 << 18, marks=KERNELS),
    pytest.param("cpu", 1 << 25, marks=[KERNELS, pytest.mark.slow, pytest.mark.timeout(900)]),
]


def constant_tokens(length: int) -> Tensor:
    """Create equal tokens of shape (1, H, N, 1)."""
    return A.view(1, -1, 1, 1).repeat(1, 1, length, 1).requires_grad_()


def require_near(found: Tensor, expected: Tensor) -> None:
    largest = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, atol=2e-6 * largest, rtol=2e-6)


def some(values: Tensor) -> Tensor:
    """Select 200 tokens of (1, H, N, 1): the first, the last and 100 between."""
    length = values.shape[2]
    places = torch.cat((torch.arange(50), torch.arange(length - 150, length)))
    places[50:150] = torch.linspace(50, length - 51, 100).long()
    return values[0, :, places, 0]


@pytest.mark.parametrize(("backend", "length"), RUNS)
def test_equal_tokens(backend: str, length: int) -> None:
    """With f = -a / (1 + a^2) and Pi = softmax(T / N), y = f Pi for every token."""
    w, temperature = constant_tokens(length), torch.tensor([0.5, 2.0, -1.0], requires_grad=True)
    y = token_statistics(w, temperature, backend=backend)
    y.backward(WEIGHT.view(1, -1, 1, 1).expand_as(y))

    a, weight = A.double(), WEIGHT.double()
    f, pi = -a / (1 + a.square()), torch.softmax(temperature.detach().double() / length, 0)
    slope = (a.square() - 1) / (1 + a.square()).square()
    assert w.grad is not None
    assert temperature.grad is not None
    require_near(some(y), (f * pi)[:, None].expand(-1, 200))
    require_near(some(w.grad), (weight * pi * slope)[:, None].expand(-1, 200))
    require_near(temperature.grad, pi * (weight * f - (weight * f * pi).sum()))


@pytest.mark.parametrize(("backend", "length"), RUNS)
def test_equal_tokens_of_the_causal_variant(backend: str, length: int) -> None:
    """At temperature 0, Pi = 1 / H. Token n adds a 2 a^2 / n term to each earlier gradient."""
    w, heads = constant_tokens(length), len(A)
    y, state = causal_token_statistics(w, torch.zeros(heads), return_state=True, backend=backend)
    y.backward(WEIGHT.view(1, -1, 1, 1).expand_as(y))

    a, weight = A.double(), WEIGHT.double() / heads
    squares, gate = a.square(), 1 / (1 + a.square())
    require_near(some(y), (-a * gate / heads)[:, None].expand(-1, 200))
    sums = torch.stack((state.energy[0, :, 0], state.member_energy[0, :, 0], state.member_count[0]))
    expected = torch.stack((squares, squares / heads, torch.ones(heads).double() / heads))
    require_near(sums, expected * length)
    later = torch.arange(1, length + 1, dtype=torch.float64).reciprocal_().flip(0).cumsum(0).flip(0)
    later = some(later.view(1, 1, -1, 1))[0]
    assert w.grad is not None
    through_own, through_later = -weight * gate, weight * 2 * squares * gate.square()
    require_near(some(w.grad), through_own[:, None] + through_later[:, None] * later)


@pytest.mark.parametrize("backend", ["reference", pytest.param("cpu", marks=KERNELS), "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stream_is_accurate_after_2_to_the_24_tokens(backend: str, dtype: torch.dtype) -> None:
    """In float32, adding one token would not change a sum of 2^24 or more."""
    w, tokens = torch.ones(1, 2, 1, 3, dtype=dtype), 1 << 26
    _, state = causal_token_statistics(w, torch.zeros(2), return_state=True, backend=backend)
    before = state._replace(
        energy=state.energy * tokens,
        member_energy=state.member_energy * tokens,
        member_count=state.member_count * tokens,
        position=state.position * tokens,
    )
    after = before
    for _ in range(5):
        y, after = causal_token_statistics(
            w, torch.zeros(2), initial_state=after, return_state=True, backend=backend
        )
        assert torch.equal(y, torch.full_like(y, -0.25))
    assert after.position.item() == tokens + 5
    for name, added in (("energy", 5.0), ("member_energy", 2.5), ("member_count", 2.5)):
        grown = getattr(after, name) - getattr(before, name)
        assert torch.equal(grown, torch.full_like(grown, added)), name
