"""Functions with their own backward pass: values and gradients against the plain formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rifflemix.lab.runs.measure import peak_memory
from rifflemix.mixers._attention.autograd_functions import (
    elu_plus_one,
    random_features,
    sums_before,
)

OFFSET = 0.3  # large: the gradient of the largest product depends on the offset alone


def literal(x: Tensor, rows: Tensor, padded: Tensor | None, over_tokens: bool) -> Tensor:
    products = torch.einsum("bhnd,md->bhnm", x, rows)
    counted = products if padded is None else products.masked_fill(padded, -1e30)
    largest = counted.amax((-1, -2) if over_tokens else -1, keepdim=True)
    exponents = products - x.square().sum(-1, keepdim=True) / 2 - largest
    if padded is not None:
        exponents = exponents.masked_fill(padded, 0.0)
    return (exponents.exp() + OFFSET) / len(rows) ** 0.5


@pytest.mark.parametrize(("over_tokens", "masked"), [(False, False), (True, False), (True, True)])
def test_random_features(over_tokens: bool, masked: bool) -> None:
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(7, 4, dtype=torch.float64)
    padded = (torch.arange(5) >= 3)[None, None, :, None] if masked else None
    grad = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    if padded is not None:
        grad = grad.masked_fill(padded, 0.0)
    y = random_features(x, rows, padded, OFFSET, over_tokens=over_tokens)
    expected = literal(x, rows, padded, over_tokens)
    torch.testing.assert_close(y, expected, atol=1e-13, rtol=1e-12)
    (found,) = torch.autograd.grad(y, x, grad, create_graph=True)
    (wanted,) = torch.autograd.grad(expected, x, grad, create_graph=True)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-10)
    again = torch.randn_like(x)
    (found,) = torch.autograd.grad(found, x, again)
    (wanted,) = torch.autograd.grad(wanted, x, again)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-10)


def test_elu_plus_one() -> None:
    x = torch.randn(3, 50, dtype=torch.float64)
    x[0, 0] = 0.0
    x.requires_grad_()
    torch.testing.assert_close(elu_plus_one(x), torch.where(x > 0, x + 1, x.exp()))
    (found,) = torch.autograd.grad(elu_plus_one(x).sum(), x)
    torch.testing.assert_close(found, torch.where(x > 0, 1.0, x.detach().exp()))
    away = x.detach()[1:].requires_grad_()  # away from 0, since there is no second derivative at 0
    assert torch.autograd.gradcheck(elu_plus_one, away)
    assert torch.autograd.gradgradcheck(elu_plus_one, away)


@pytest.mark.parametrize("chunks", [1, 2, 7])
def test_causal_prefix_sums(chunks: int) -> None:
    x = torch.randn(2, 3, chunks, 4, 2, dtype=torch.float64, requires_grad=True)
    earlier = torch.ones(chunks, chunks, dtype=torch.float64).tril(-1)
    torch.testing.assert_close(sums_before(x), torch.einsum("gh,abhrs->abgrs", earlier, x))
    assert torch.autograd.gradcheck(sums_before, x, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(sums_before, x)


def test_backward_saves_one_tensor_of_features() -> None:
    x = torch.randn(1, 2, 512, 8, requires_grad=True)
    rows = torch.randn(64, 8)
    features = 2 * 512 * 64 * 4  # bytes

    def step() -> None:
        random_features(x, rows, None, OFFSET, over_tokens=False).sum().backward()

    # The features and their gradient, and little else.
    assert peak_memory(step, torch.device("cpu")) < 2.6 * features
