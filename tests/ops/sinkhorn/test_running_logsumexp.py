"""Running logsumexp of causal balancing: value, first and second derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rifflemix.ops.sinkhorn import sinkhorn
from rifflemix.ops.sinkhorn.eager import LOG_ZERO, running_logsumexp


def scores(n: int, scale: float) -> Tensor:
    torch.manual_seed(n)
    return (scale * torch.randn(2, n, 3, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_value_and_gradient_by_the_definition(n: int, scale: float) -> None:
    x = scores(n, scale)
    live = torch.rand_like(x) < 0.8
    x = x.masked_fill(~live, LOG_ZERO)
    y = running_logsumexp(x)
    assert torch.equal(y, x.logcumsumexp(-2))
    grad = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, grad)
    expected = torch.zeros_like(x)
    for u in range(n):
        expected[:, : u + 1] += x[:, : u + 1].softmax(1) * grad[:, u : u + 1]
    torch.testing.assert_close(found[live], expected[live], atol=1e-12, rtol=1e-12)
    assert found.isfinite().all()


# Forward mode of torch still calls the deprecated torch.jit.script.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_gradcheck(n: int) -> None:
    x = scores(n, 2.0)
    assert torch.autograd.gradcheck(running_logsumexp, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(running_logsumexp, (x,))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_under_the_transforms_of_torch_func() -> None:
    x = scores(4, 1.0).detach()
    backward = torch.func.vmap(torch.func.jacrev(running_logsumexp))(x)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacfwd(running_logsumexp))(x), backward)


@pytest.mark.parametrize("final_row_norm", [True, False])
def test_second_derivatives_of_causal_balancing(final_row_norm: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        return sinkhorn(x, 2, causal=True, final_row_norm=final_row_norm)

    assert torch.autograd.gradgradcheck(run, (x,))


def test_second_derivatives_are_finite_at_zero_gradient() -> None:
    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(sinkhorn(x, 2, causal=True)[3, 0], x, create_graph=True)
    (second,) = torch.autograd.grad(g.pow(2).sum() + g.sum(), x)
    assert second.isfinite().all()
    assert second.any()
