from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from permutation_cases import MASK_TENSORS, check_permutation, tied, tokens
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import max_exchange

NAN = float("nan")
INF = float("inf")


def test_released_code(golden) -> None:
    vectors = golden("sliceformer_max_exchange")
    v = torch.from_numpy(vectors["v"]).flatten(0, 1)
    expected = torch.from_numpy(vectors["y"]).flatten(0, 1)
    for backend in ("reference", "eager"):
        assert torch.equal(max_exchange(v, backend=backend), expected)


@settings(max_examples=100, deadline=None)
@given(tokens())
def test_eager_equals_reference(case: tuple) -> None:
    x, mask, _ = case
    options = {"key_padding_mask": mask, "return_indices": True}
    y, index = max_exchange(x, **options)
    expected, expected_index = max_exchange(x, backend="reference", **options)
    check_permutation(x, y, index, mask)
    assert torch.equal(index, expected_index)
    assert torch.equal(y.nan_to_num(7.5), expected.nan_to_num(7.5))
    alone = max_exchange(x, key_padding_mask=mask)
    assert torch.equal(alone.nan_to_num(7.5), y.nan_to_num(7.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("values", "padded", "expected"),
    [
        ([1.0, 3.0, 2.0, 3.0], None, [1, 0, 2, 3]),
        ([3.0, 3.0, 2.0, 1.0], None, [0, 1, 2, 3]),
        ([1.0, NAN, 5.0, NAN], None, [1, 0, 2, 3]),
        ([-0.0, 0.0, -1.0, 0.0], None, [0, 1, 2, 3]),
        ([9.0, 1.0, 2.0, 9.0], [0, 3], [0, 2, 1, 3]),
        ([-INF, -INF, -INF, -INF], [0], [0, 1, 2, 3]),
        ([1.0, -INF, 2.0, 3.0], [0, 2, 3], [0, 1, 2, 3]),
        ([1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3], [0, 1, 2, 3]),
    ],
)
def test_equals_a_worked_example(
    values: list[float], padded: list[int] | None, expected: list[int], dtype: torch.dtype
) -> None:
    x = torch.tensor(values, dtype=dtype)[None, :, None]
    mask = None
    if padded is not None:
        mask = torch.zeros(1, 4, dtype=torch.bool)
        mask[0, padded] = True
    _, index = max_exchange(x, key_padding_mask=mask, return_indices=True)
    assert index.flatten().tolist() == expected


@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
def test_gradients_go_to_the_selected_values(mask: Tensor | None) -> None:
    x = tied(3, 12, 4).requires_grad_()
    y, index = max_exchange(x, key_padding_mask=mask, return_indices=True)
    cotangent = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    if mask is not None:
        cotangent = cotangent.masked_fill(mask.unsqueeze(-1), 0.0)
    assert torch.equal(gradient, torch.zeros_like(x).scatter(1, index, cotangent))


@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
def test_gradcheck(mask: Tensor | None) -> None:
    x = torch.randn(3, 12, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: max_exchange(x, key_padding_mask=mask), (x,))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match=r"x: .*got \(3, 4\)"):
        max_exchange(torch.randn(3, 4))
    with pytest.raises(InputError, match="backend"):
        max_exchange(torch.randn(1, 3, 4), backend="fast")
