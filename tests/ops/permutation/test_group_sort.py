from __future__ import annotations

import pytest
import scipy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from permutation_cases import MASK_TENSORS, check_permutation, tied, tokens
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import group_sort, interleave_columns
from rifflemix.ops.permutation import ORDERS

NAN = float("nan")
INF = float("inf")


def column(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)[None, :, None]


def indices(x: Tensor, num_groups: int = 1, **options: object) -> list[int]:
    return group_sort(x, num_groups, return_indices=True, **options)[1].flatten().tolist()


@settings(max_examples=150, deadline=None)
@given(tokens(), st.sampled_from(ORDERS), st.sampled_from([1, 2]))
def test_eager_equals_reference(case: tuple, order: str, heads: int) -> None:
    x, mask, groups = case
    options = {"order": order, "heads": heads, "key_padding_mask": mask, "return_indices": True}
    expected, expected_index = group_sort(x, groups, backend="reference", **options)
    y, index = group_sort(x, groups, **options)
    check_permutation(x, y, index, mask)
    assert torch.equal(index, expected_index)
    assert torch.equal(y.nan_to_num(7.5), expected.nan_to_num(7.5))
    alone = group_sort(x, groups, order=order, heads=heads, key_padding_mask=mask)
    assert torch.equal(alone.nan_to_num(7.5), y.nan_to_num(7.5))


@settings(max_examples=100, deadline=None)
@given(tokens(group_size=2), st.sampled_from(ORDERS), st.sampled_from([1, 2]))
def test_pairs_equal_reference(case: tuple, order: str, heads: int) -> None:
    x, mask, groups = case
    options = {"order": order, "heads": heads, "key_padding_mask": mask, "return_indices": True}
    expected, expected_index = group_sort(x, groups, backend="reference", **options)
    y, index = group_sort(x, groups, **options)
    check_permutation(x, y, index, mask)
    assert torch.equal(index, expected_index)
    assert torch.equal(y.nan_to_num(7.5), expected.nan_to_num(7.5))


@settings(max_examples=50, deadline=None)
@given(tokens(), st.data())
def test_directions_per_channel(case: tuple, data: st.DataObject) -> None:
    x, mask, groups = case
    down = torch.tensor(
        data.draw(st.lists(st.booleans(), min_size=x.shape[2], max_size=x.shape[2]))
    )
    options = {"key_padding_mask": mask, "return_indices": True}
    _, index = group_sort(x, groups, descending=down, **options)
    _, expected = group_sort(x, groups, descending=down, backend="reference", **options)
    assert torch.equal(index, expected)
    for order, channels in (("ascending", ~down), ("descending", down)):
        _, whole = group_sort(x, groups, order=order, **options)
        assert torch.equal(index[..., channels], whole[..., channels])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, 17, 64])
def test_custom_orders_equal_torch_sort(length: int, dtype: torch.dtype) -> None:
    x = tied(2, length, 5, dtype)
    for order in ("ascending", "descending"):
        expected = x.sort(dim=1, stable=True, descending=order == "descending")
        y, index = group_sort(x, order=order, return_indices=True)
        assert torch.equal(index, expected.indices)
        assert torch.equal(y, expected.values)


@pytest.mark.parametrize("groups", [1, 4], ids=["sort", "pairs"])
def test_ascending_order_puts_nan_like_torch(groups: int) -> None:
    x = torch.where(torch.rand(3, 8, 4) < 0.4, NAN, torch.randn(3, 8, 4))
    _, index = group_sort(x, groups, order="ascending", return_indices=True)
    local = x.view(3, groups, -1, 4).sort(dim=2, stable=True).indices
    starts = torch.arange(0, 8, 8 // groups)[:, None, None]
    assert torch.equal(index, (local + starts).flatten(1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("values", "order", "expected"),
    [
        ([0.0, -0.0, 0.0, -1.0], "ascending", [3, 0, 1, 2]),
        ([0.0, -0.0, 0.0, 1.0], "descending", [3, 0, 1, 2]),
        ([-0.0, 1e-40, 0.0, -1e-40], "ascending", None),
        ([NAN, 1.0, -INF, INF], "ascending", [2, 1, 3, 0]),
        ([NAN, 1.0, -INF, INF], "descending", [3, 1, 2, 0]),
        ([NAN, -NAN, 1.0, NAN], "descending", [2, 0, 1, 3]),
        ([2.0, 1.0], "ascending", [1, 0]),
        ([1.0, 1.0], "ascending", [0, 1]),
        ([1.0, 1.0], "descending", [0, 1]),
        ([-0.0, 0.0], "descending", [0, 1]),
        ([0.0, -0.0], "ascending", [0, 1]),
        ([NAN, INF], "ascending", [1, 0]),
        ([NAN, -INF], "descending", [1, 0]),
        ([NAN, NAN], "ascending", [0, 1]),
    ],
)
def test_subnormals_zeros_infinities_and_nan_are_ordered(
    values: list[float], order: str, expected: list[int] | None, dtype: torch.dtype
) -> None:
    x = column(values, dtype)
    if expected is None:  # subnormal numbers are distinguished, zeros of either sign are equal
        expected = x.sort(dim=1, stable=True).indices.flatten().tolist()
        assert expected == [3, 0, 2, 1]
    assert indices(x, order=order) == expected
    assert indices(x, order=order, backend="reference") == expected


def test_values_that_round_to_the_same_bfloat16_are_ties() -> None:
    x = torch.tensor([1.002, 1.001, 1.003, 0.5])[None, :, None]
    assert indices(x, order="ascending") == [3, 1, 0, 2]
    assert indices(x.bfloat16(), order="ascending") == [3, 0, 1, 2]


def test_reference_order_equals_a_worked_example() -> None:
    # ranks of `reference`: 2 0 1 | 0 2 1
    reference = [5.0, -1.0, 2.0, 0.0, 9.0, 3.0]
    other = [10.0, 30.0, 20.0, 6.0, 4.0, 5.0]
    x = torch.tensor([reference, other]).T[None]
    y, index = group_sort(x, 2, return_indices=True)
    assert torch.equal(y[..., 0], x[..., 0])
    assert y[0, :, 1].tolist() == [30.0, 10.0, 20.0, 4.0, 6.0, 5.0]
    assert index[0, :, 1].tolist() == [1, 0, 2, 4, 3, 5]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**16))
def test_reference_order_is_the_optimal_transport(size: int, groups: int, seed: int) -> None:
    """CSP appendix B: each group's permutation T maximizes <v_0 v_c^T, T>."""
    torch.manual_seed(seed)
    x = torch.randn(1, groups * size, 4, dtype=torch.float64)
    _, index = group_sort(x, groups, return_indices=True)
    for group in range(groups):
        inside = slice(group * size, (group + 1) * size)
        for channel in range(4):
            gain = torch.outer(x[0, inside, 0], x[0, inside, channel]).numpy()
            rows, sources = scipy.optimize.linear_sum_assignment(gain, maximize=True)
            assert rows.tolist() == list(range(size))
            assert index[0, inside, channel].tolist() == (sources + group * size).tolist()


def test_every_head_has_a_separate_reference() -> None:
    x = torch.randn(2, 12, 8)
    for groups in (1, 2, 6):
        y, index = group_sort(x, groups, heads=4, return_indices=True)
        for head in range(4):
            channels = slice(2 * head, 2 * head + 2)
            alone, alone_index = group_sort(x[..., channels], groups, return_indices=True)
            assert torch.equal(y[..., channels], alone)
            assert torch.equal(index[..., channels], alone_index)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("groups", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
def test_gradients_go_to_the_selected_values(mask: Tensor | None, groups: int, order: str) -> None:
    """With ties too, each input receives the cotangent of the position it moved to."""
    x = tied(3, 12, 4).requires_grad_()
    y, index = group_sort(x, groups, order=order, key_padding_mask=mask, return_indices=True)
    cotangent = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    if mask is not None:
        cotangent = cotangent.masked_fill(mask.unsqueeze(-1), 0.0)
    assert torch.equal(gradient, torch.zeros_like(x).scatter(1, index, cotangent))


# One random direction by default, all directions in the slow tests.
DIRECTIONS = [
    pytest.param(True, id="one way"),
    pytest.param(False, id="all", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
@pytest.mark.parametrize("fast", DIRECTIONS)
def test_gradcheck(mask: Tensor | None, groups: int, order: str, fast: bool) -> None:
    x = torch.randn(3, 12, 2, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda x: group_sort(x, groups, order=order, key_padding_mask=mask), (x,), fast_mode=fast
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
def test_padding_content_does_not_change_outputs(
    mask: Tensor | None, groups: int, order: str
) -> None:
    mask = torch.zeros(3, 12, dtype=torch.bool) if mask is None else mask
    x = torch.randn(3, 12, 4)
    outcomes = []
    for fill in (0.0, NAN, INF, -INF):
        filled = x.masked_fill(mask.unsqueeze(-1), fill).requires_grad_()
        y = group_sort(filled, groups, order=order, key_padding_mask=mask)
        (gradient,) = torch.autograd.grad(y.square().sum(), filled)
        outcomes.append(torch.cat((y.detach(), gradient)))
    assert all(torch.equal(outcome, outcomes[0]) for outcome in outcomes)
    assert not outcomes[0][:3][mask].any()


@pytest.mark.parametrize("value", [INF, NAN])
def test_padding_comes_after_every_valid_value(value: float) -> None:
    x = column([7.0, value, 1.0, value])
    mask = torch.tensor([[True, False, False, False]])
    assert indices(x, order="ascending", key_padding_mask=mask) == [0, 2, 1, 3]


def test_descending_reverses_the_valid_prefix() -> None:
    x = column([1.0, 3.0, 2.0, 9.0, 9.0])
    mask = torch.tensor([[False, False, False, True, True]])
    y = group_sort(x, descending=torch.tensor([True]), key_padding_mask=mask)
    assert y.flatten().tolist() == [3.0, 2.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("layer", [0, 1])
def test_released_interleave(golden, layer: int) -> None:
    vectors = golden(f"sliceformer_interleave_l{layer}")
    weight = torch.from_numpy(vectors["p.to_qkv.weight"])[32:]
    v = torch.from_numpy(vectors["x"]) @ weight.T
    expected = torch.from_numpy(vectors["sorted"]).transpose(1, 2).flatten(2)
    for backend in ("reference", "eager"):
        down = interleave_columns(16, layer, heads=2)
        y = group_sort(v, descending=down, backend=backend)
        torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)


def test_released_reference_sort(golden) -> None:
    vectors = golden("csp_reference_sort_full")
    v = torch.from_numpy(vectors["x"]) @ torch.from_numpy(vectors["p.to_qkv.weight"])[32:].T
    y = group_sort(v)
    torch.testing.assert_close(y, torch.from_numpy(vectors["perm"]), atol=1e-5, rtol=1e-4)


X = torch.randn(2, 6, 4)
DOWN = torch.tensor([True, False, True, False])


@pytest.mark.parametrize(
    ("groups", "options", "named"),
    [
        (4, {}, r"num_groups: .*N = 6.*got 4\b"),
        (0, {}, "num_groups"),
        (7, {}, "num_groups"),
        (1, {"heads": 3}, "heads"),
        (1, {"order": "ascnding"}, "order.*ascending"),
        (1, {"order": "reference", "descending": DOWN}, "order"),
        (1, {"order": "descending", "descending": DOWN}, "order"),
        (1, {"descending": DOWN[:3]}, r"descending: .*got \(3,\)"),
        (1, {"descending": DOWN.int()}, r"descending: .*got torch\.int32"),
        (1, {"descending": True}, "descending:"),
        (1, {"key_padding_mask": torch.zeros(2, 6)}, "key_padding_mask"),
        (1, {"backend": "triton"}, "backend"),
    ],
)
def test_bad_arguments_are_refused(groups: int, options: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        group_sort(X, groups, **options)


def test_other_float_types_are_refused() -> None:
    with pytest.raises(InputError, match=r"x: .*float16\b.*bfloat16\b.*float32\b.*float64\b"):
        group_sort(X.to(torch.float8_e5m2))
