"""The ISTA step of the ablation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rifflemix.models.vision.tost_layers import ISTA


def objective(code: Tensor, x: Tensor, dictionary: Tensor, sparsity: float) -> Tensor:
    return 0.5 * (x - code @ dictionary.T).square().sum(-1) + sparsity * code.abs().sum(-1)


def test_equals_the_explicit_step() -> None:
    layer = ISTA(5, step_size=0.3, sparsity=0.2).double()
    x = torch.randn(5, dtype=torch.float64)
    d = layer.weight.detach()
    expected = []
    for channel in range(5):
        gradient = sum(
            d[row, channel] * (x[row] - sum(d[row, k] * x[k] for k in range(5))) for row in range(5)
        )
        expected.append(max(0.0, float(x[channel] + 0.3 * gradient - 0.3 * 0.2)))
    torch.testing.assert_close(layer(x), torch.tensor(expected, dtype=torch.float64))


def test_is_a_proximal_step_that_lowers_the_lasso_objective() -> None:
    """From a non-negative start, every step up to 1 / |D|^2 lowers the objective."""
    for seed in range(20):
        torch.manual_seed(seed)
        layer = ISTA(8, sparsity=0.3).double()
        d = layer.weight.detach()
        layer.step_size = 1 / float(torch.linalg.matrix_norm(d, 2)) ** 2
        x = torch.rand(16, 8, dtype=torch.float64)
        before, after = (objective(code, x, d, 0.3) for code in (x, layer(x).detach()))
        assert (after <= before + 1e-12).all()
        assert (after < before).any()


def test_gradient_equals_the_gradient_of_the_smooth_part() -> None:
    """Away from the threshold, the step is -step_size times the gradient of autograd."""
    layer = ISTA(6, step_size=0.05, sparsity=0.1).double()
    x = 10 + torch.rand(6, dtype=torch.float64)
    layer.weight.data.mul_(0.1)
    code = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(code, x, layer.weight.detach(), 0.1), code)
    torch.testing.assert_close(layer(x), x - 0.05 * gradient)


def test_strong_sparsity_gives_zeros_and_identity_shrinks() -> None:
    layer = ISTA(4, step_size=0.5, sparsity=0.4)
    torch.nn.init.eye_(layer.weight)
    x = torch.tensor([0.1, 0.2, 1.0, -3.0])
    torch.testing.assert_close(layer(x), torch.tensor([0.0, 0.0, 0.8, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_shape_and_dtype_do_not_change(dtype: torch.dtype) -> None:
    layer = ISTA(6).to(dtype)
    y = layer(torch.randn(2, 3, 6, dtype=dtype))
    assert y.shape == (2, 3, 6)
    assert y.dtype == dtype
    assert (y >= 0).all()


def test_gradcheck() -> None:
    layer = ISTA(4).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(layer, {"weight": w}, (x,)), (x, layer.weight)
    )


def test_parameters_are_one_dictionary() -> None:
    layer = ISTA(12)
    assert [tuple(p.shape) for p in layer.parameters()] == [(12, 12)]
    assert layer.weight.abs().max() <= (6 / 12) ** 0.5


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "dim": ({"dim": 0}, r"dim: .*\b1\b"),
    "step": ({"dim": 4, "step_size": 0.0}, r"step_size: .*\b0\b"),
    "sparsity": ({"dim": 4, "sparsity": -1.0}, r"sparsity: .*\b0\b"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ISTA(**options)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"x: .*4 channels"):
        ISTA(4)(torch.randn(2, 5))
