from __future__ import annotations

import pytest
import torch
from permutation_cases import MASK_TENSORS
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import group_sort, relaxed_group_sort


def spread(batch: int, length: int, channels: int) -> Tensor:
    """Create well-separated values, so that a moderate temperature is close to the limit."""
    ranks = torch.rand(batch, length, channels, dtype=torch.float64).argsort(1).double()
    return ranks - length / 2 + 0.2 * torch.rand_like(ranks)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
def test_eager_equals_reference(mask: Tensor | None, groups: int) -> None:
    x = torch.randn(3, 12, 4, dtype=torch.float64, requires_grad=True)
    options = {"temperature": 0.7, "num_iterations": 5, "key_padding_mask": mask}
    y, plan = relaxed_group_sort(x, groups, return_plan=True, **options)
    expected, expected_plan = relaxed_group_sort(
        x, groups, return_plan=True, backend="reference", **options
    )
    torch.testing.assert_close(plan, expected_plan, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-10)
    gradients = [torch.autograd.grad(t.square().sum(), x)[0] for t in (y, expected)]
    torch.testing.assert_close(*gradients, atol=1e-10, rtol=1e-8)
    if mask is not None:
        assert not y[mask].any()


@pytest.mark.parametrize("groups", [1, 3])
def test_plan_is_doubly_stochastic(groups: int) -> None:
    x = torch.randn(2, 12, 4, dtype=torch.float64)
    y, plan = relaxed_group_sort(x, groups, temperature=1.0, num_iterations=100, return_plan=True)
    assert plan.shape == (2, groups, 4, 12 // groups, 12 // groups)
    ones = torch.ones(plan.shape[:-1], dtype=torch.float64)
    torch.testing.assert_close(plan.sum(-1), ones, atol=1e-6, rtol=0)
    torch.testing.assert_close(plan.sum(-2), ones, atol=1e-12, rtol=0)
    # Doubly stochastic matrices keep the mean of each group.
    means = [t.view(2, groups, -1, 4).mean(2) for t in (x, y)]
    torch.testing.assert_close(*means, atol=1e-6, rtol=0)


def test_converges_to_equation_9() -> None:
    """The plan equals plain row and column normalization of exp(v_0 v_c^T / temperature)."""
    x = torch.randn(1, 5, 3, dtype=torch.float64)
    _, plan = relaxed_group_sort(x, temperature=0.5, num_iterations=200, return_plan=True)
    for channel in range(3):
        literal = torch.exp(torch.outer(x[0, :, 0], x[0, :, channel]) / 0.5)
        for _ in range(3000):
            literal = literal / literal.sum(1, keepdim=True)
            literal = literal / literal.sum(0, keepdim=True)
        torch.testing.assert_close(plan[0, 0, channel], literal, atol=1e-7, rtol=0)


@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_tends_to_the_hard_sort(groups: int, mask: Tensor | None) -> None:
    """Theorem 2 holds with the default number of iterations."""
    x = spread(3, 12, 4)
    hard = group_sort(x, groups, key_padding_mask=mask)
    errors = []
    for temperature in (3.0, 0.3, 0.03, 1e-6):
        soft = relaxed_group_sort(x, groups, temperature=temperature, key_padding_mask=mask)
        errors.append((soft - hard).abs().max().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[2] < 1e-4
    assert errors[3] < 1e-12


def test_low_temperatures_stay_finite_in_float32() -> None:
    x = spread(2, 12, 4).float()
    soft = relaxed_group_sort(x, 2, temperature=1e-6)
    torch.testing.assert_close(soft, group_sort(x, 2))


def test_the_order_has_gradients() -> None:
    x = torch.randn(2, 8, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda x: relaxed_group_sort(x, 2, temperature=0.8, num_iterations=6), (x,)
    )
    y = relaxed_group_sort(x, 2, temperature=0.8)
    (soft,) = torch.autograd.grad(y[..., 1:].square().sum(), x)
    (hard,) = torch.autograd.grad(group_sort(x, 2)[..., 1:].square().sum(), x)
    assert (soft[..., 0] != 0).all()  # the reference channel gets gradients through the order
    assert not hard[..., 0].any()


def test_fully_padded_samples_have_finite_gradients() -> None:
    x = torch.randn(2, 6, 3).masked_fill(torch.tensor([[[True]], [[False]]]), float("nan"))
    x.requires_grad_()
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[0] = True
    y = relaxed_group_sort(x, 2, temperature=0.1, key_padding_mask=mask)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert not y[0].any()
    assert gradient.isfinite().all()


def test_low_precision_is_balanced_in_float32() -> None:
    x = torch.randn(2, 8, 3).bfloat16()
    y, plan = relaxed_group_sort(x, 2, temperature=0.5, return_plan=True)
    assert y.dtype == torch.bfloat16
    assert plan.dtype == torch.float32
    exact = relaxed_group_sort(x.double(), 2, temperature=0.5)
    torch.testing.assert_close(y.double(), exact, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("groups", "options", "named"),
    [
        (4, {"temperature": 1.0}, "num_groups"),
        (2, {"temperature": 0.0}, "temperature"),
        (2, {"temperature": float("nan")}, "temperature"),
        (2, {"temperature": 1.0, "num_iterations": 0}, "num_iterations"),
        (2, {"temperature": 1.0, "backend": "cpu"}, "backend"),
    ],
)
def test_bad_arguments(groups: int, options: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        relaxed_group_sort(torch.randn(1, 6, 4), groups, **options)


def test_nothing_to_sort_is_refused() -> None:
    with pytest.raises(InputError, match=r"x: .*got \(1, 0, 4\)"):
        relaxed_group_sort(torch.randn(1, 0, 4), temperature=1.0)
