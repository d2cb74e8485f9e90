from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rifflemix.errors import InputError
from rifflemix.lab.analysis.kinds.measures import collapse_bound, one_infinity_norm
from rifflemix.ops import channel_permute, group_sort, shift_steps


def test_norm_equals_a_worked_example() -> None:
    x = torch.tensor([[[1.0, -2.0], [3.0, 0.5]], [[0.0, 0.0], [0.0, 4.0]]])
    assert one_infinity_norm(x).tolist() == pytest.approx([(4.0 * 3.5) ** 0.5, 4.0])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([None, torch.relu, torch.tanh]),
    st.integers(0, 2**16),
)
def test_theorem_1_holds(
    groups: int,
    channels: int,
    layers: int,
    f: Callable[[torch.Tensor], torch.Tensor] | None,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(2, 12, channels, dtype=torch.float64)
    weights = [torch.randn(channels, channels, dtype=torch.float64) for _ in range(layers)]
    steps = shift_steps("linear", 12, channels)
    check = collapse_bound(x, weights, lambda v: channel_permute(v, steps, groups), activation=f)
    assert check.residual.shape == check.bound.shape == (layers + 1, 2)
    assert check.holds(1e-9)
    assert check.change.shape == (layers, 2)
    assert check.change.max() < 1e-9


def test_bound_equals_a_worked_example() -> None:
    x = torch.tensor([[[0.0, 0.0], [2.0, 1.0], [-2.0, 3.0]]]).double()
    weights = [torch.tensor([[1.0, 2.0], [0.0, -1.0]]).double(), torch.eye(2).double()]
    check = collapse_bound(x, weights, lambda v: v, lipschitz=2.0)
    first = (4.0 * 4.0) ** 0.5  # medians (0, 1): columns 4 and 3, rows 1, 2 and 4
    assert check.bound[:, 0].tolist() == pytest.approx([first, 6 * 2**0.5 * first, 72 * first])


def test_other_maps_can_violate_the_bound() -> None:
    x = torch.randn(1, 8, 4, dtype=torch.float64)
    check = collapse_bound(x, [torch.eye(4).double()], lambda v: 100 * v)
    assert not check.holds()


@pytest.mark.parametrize(
    "wrong",
    [lambda v: 2 * v, lambda v: (v + v.flip(1)) / 2, lambda v: v[:, [0, 0, 1, 2, 3, 4, 5, 6]]],
    ids=["scaled", "averaged", "a token twice"],
)
def test_other_maps_change_distances(
    wrong: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(1, 8, 4, dtype=torch.float64)
    weight = torch.randn(4, 4, dtype=torch.float64)
    check = collapse_bound(x, [weight, weight], wrong)
    assert check.holds(), "the bound is too loose to notice"
    assert check.change[0].min() > 0.01


def test_bad_arguments_are_refused() -> None:
    x = torch.randn(1, 4, 3)
    with pytest.raises(InputError, match="weights"):
        collapse_bound(x, [torch.eye(2)], group_sort)
    with pytest.raises(InputError, match="lipschitz"):
        collapse_bound(x, [torch.eye(3)], group_sort, lipschitz=0.0)
