from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from permutation_cases import check_permutation, tokens

from rifflemix.errors import InputError
from rifflemix.ops import channel_permute, circular_shift, group_sort, shift_steps
from rifflemix.ops.permutation import ORDERS


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize(
    ("name", "groups"), [("literal_csp_kfull", 12), ("literal_csp_linear_k1", 1)]
)
def test_explicit_permutation_matrices(golden, name: str, groups: int, backend: str) -> None:
    vectors = {key: torch.from_numpy(value) for key, value in golden(name).items()}
    v = vectors["v"].requires_grad_()
    y, index = channel_permute(v, vectors["shifts"], groups, return_indices=True, backend=backend)
    torch.testing.assert_close(y, vectors["y"], atol=1e-5, rtol=1e-4)
    matrices = torch.nn.functional.one_hot(index.transpose(1, 2), 12)
    assert torch.equal(matrices, vectors["P"].long())
    cotangent = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, v, cotangent)
    expected = torch.einsum("bcnm,bnc->bmc", vectors["P"].to(y.dtype), cotangent)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("csp_code_linear_n16c6", "code_linear", {}),
        ("csp_code_exp_l0", "code_exp", {"layer_index": 0, "num_layers": 3}),
    ],
)
def test_released_presets(golden, name: str, kind: str, options: dict, backend: str) -> None:
    vectors = golden(name)
    v = torch.from_numpy(vectors["v"])
    y = channel_permute(
        v, shift_steps(kind, 16, 6, **options), 8, order="ascending", backend=backend
    )
    assert torch.equal(y, torch.from_numpy(vectors["y"]))


@settings(max_examples=60, deadline=None)
@given(tokens(), st.sampled_from(ORDERS), st.sampled_from([1, 2]), st.data())
def test_is_shift_then_sort(case: tuple, order: str, heads: int, data: st.DataObject) -> None:
    x, mask, groups = case
    steps = data.draw(st.lists(st.integers(-9, 9), min_size=x.shape[2], max_size=x.shape[2]))
    shifted = circular_shift(x, steps, key_padding_mask=mask)
    expected = group_sort(shifted, groups, order=order, heads=heads, key_padding_mask=mask)
    for backend in ("reference", "eager"):
        options = {"order": order, "heads": heads, "key_padding_mask": mask, "backend": backend}
        y, index = channel_permute(x, steps, groups, return_indices=True, **options)
        check_permutation(x, y, index, mask)
        assert torch.equal(y.nan_to_num(7.5), expected.nan_to_num(7.5))
        alone = channel_permute(x, steps, groups, **options)
        assert torch.equal(alone.nan_to_num(7.5), expected.nan_to_num(7.5))


def test_groups_of_one_token_give_a_shift() -> None:
    x, steps = torch.randn(2, 9, 5), torch.arange(5)
    assert torch.equal(channel_permute(x, steps, 9), circular_shift(x, steps))


def test_channel_zero_moves_only_on_request() -> None:
    x = torch.randn(2, 8, 4)
    still = channel_permute(x, [0, 3, 2, 1], 4)
    moved = channel_permute(x, [5, 3, 2, 1], 4)
    assert torch.equal(still[..., 0], x[..., 0])
    assert torch.equal(moved[..., 0], x[..., 0].roll(5, dims=1))


@pytest.mark.parametrize("groups", [2, 6])
def test_gradcheck(groups: int) -> None:
    x = torch.randn(2, 12, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 12) < 0.3
    torch.autograd.gradcheck(
        lambda x: channel_permute(x, [0, 4, 7], groups, key_padding_mask=mask), (x,)
    )


@pytest.mark.parametrize(
    ("steps", "groups", "options", "named"),
    [
        ([0] * 3, 2, {}, "steps"),
        ([0] * 4, 5, {}, "num_groups"),
        ([0] * 4, 2, {"order": "random"}, "order"),
        ([0] * 4, 2, {"heads": 0}, "heads"),
    ],
)
def test_bad_arguments_are_refused(
    steps: list[int], groups: int, options: dict, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        channel_permute(torch.randn(1, 6, 4), steps, groups, **options)
