from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from permutation_cases import MASK_TENSORS, check_permutation, tokens

from rifflemix.errors import InputError
from rifflemix.ops import circular_shift, shift_steps


def test_rolls_each_channel() -> None:
    x = torch.randn(2, 7, 4)
    steps = torch.tensor([0, 3, -2, 23])
    y = circular_shift(x, steps)
    for channel, step in enumerate(steps.tolist()):
        assert torch.equal(y[..., channel], x[..., channel].roll(step, dims=1))


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("csp_code_linear_n16c6", "code_linear", {}),
        ("csp_code_exp_l0", "code_exp", {"layer_index": 0, "num_layers": 3}),
    ],
)
def test_released_index(golden, name: str, kind: str, options: dict) -> None:
    vectors = golden(name)
    v = torch.from_numpy(vectors["v"])
    steps = shift_steps(kind, 16, 6, **options)
    for backend in ("reference", "eager"):
        y, index = circular_shift(v, steps, return_indices=True, backend=backend)
        assert torch.equal(index, torch.from_numpy(vectors["index"]).long().expand_as(index))
        assert torch.equal(y, v.gather(1, index))


@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
def test_rolls_only_the_valid_tokens(mask: torch.Tensor | None) -> None:
    x = torch.randn(3, 12, 4)
    steps = torch.tensor([0, 1, 5, -13])
    y = circular_shift(x, steps, key_padding_mask=mask)
    for sample in range(3):
        valid = slice(None) if mask is None else ~mask[sample]
        alone = x[sample : sample + 1, valid]
        if alone.shape[1]:
            assert torch.equal(y[sample, valid], circular_shift(alone, steps)[0])
        if mask is not None:
            assert not y[sample, mask[sample]].any()


@settings(max_examples=60, deadline=None)
@given(tokens(), st.data())
def test_eager_equals_reference(case: tuple, data: st.DataObject) -> None:
    x, mask, _ = case
    steps = data.draw(st.lists(st.integers(-40, 40), min_size=x.shape[2], max_size=x.shape[2]))
    expected, expected_index = circular_shift(
        x, steps, key_padding_mask=mask, return_indices=True, backend="reference"
    )
    y, index = circular_shift(x, steps, key_padding_mask=mask, return_indices=True)
    check_permutation(x, y, index, mask)
    assert torch.equal(index, expected_index)
    assert torch.equal(y.nan_to_num(7.5), expected.nan_to_num(7.5))


@pytest.mark.parametrize("mask", MASK_TENSORS.values(), ids=MASK_TENSORS)
def test_gradcheck(mask: torch.Tensor | None) -> None:
    x = torch.randn(3, 12, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda x: circular_shift(x, torch.tensor([0, 5, 2]), key_padding_mask=mask), (x,)
    )


def test_returned_index_may_be_written_to() -> None:
    _, index = circular_shift(torch.randn(2, 4, 3), [0, 1, 2], return_indices=True)
    index[0, 0, 0] = 9
    assert index[1, 0, 0] == 0


X = torch.randn(2, 6, 4)


@pytest.mark.parametrize(
    ("x", "steps", "options", "named"),
    [
        (X, torch.zeros(3, dtype=torch.int64), {}, r"steps: .*\(C,\).*\(4,\)"),
        (X, torch.zeros(4), {}, r"steps: .*got torch\.float32"),
        (X, torch.zeros(4, dtype=torch.bool), {}, r"steps: .*got torch\.bool"),
        (X[0], [0] * 4, {}, r"x: .*got \(6, 4\)"),
        (X.long(), [0] * 4, {}, r"x: .*got torch\.int64"),
        (X[:, :0], [0] * 4, {}, r"x: .*got \(2, 0, 4\)"),
        (X, [0] * 4, {"key_padding_mask": torch.zeros(2, 5).bool()}, "key_padding_mask"),
        (X, [0] * 4, {"backend": "eagre"}, "backend.*eager"),
        (X, [0] * 4, {"backend": "triton"}, "backend"),
    ],
)
def test_bad_arguments_are_refused(
    x: torch.Tensor, steps: object, options: dict, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        circular_shift(x, steps, **options)
