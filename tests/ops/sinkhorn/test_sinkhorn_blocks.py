"""Pooling, block scores, sorting of blocks, padding of sorted blocks."""

from __future__ import annotations

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.ops import block_scores, pool_blocks, sort_blocks, sorted_padding_mask

DOUBLE = torch.float64


def masks(batch: int, length: int) -> list[torch.Tensor | None]:
    scattered = torch.rand(batch, length) > 0.5
    scattered[-1] = True
    return [None, scattered]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "block"), [(1, 1), (12, 4), (12, 12), (7, 1)])
def test_pooling_eager_equals_reference(length: int, block: int, causal: bool) -> None:
    x = torch.randn(3, length, 5, dtype=DOUBLE)
    for mask in masks(3, length):
        results = [
            pool_blocks(x, block, causal=causal, key_padding_mask=mask, backend=backend)
            for backend in ("eager", "reference")
        ]
        torch.testing.assert_close(*results)


def test_pooling_equals_a_worked_example() -> None:
    x = torch.arange(6.0).view(1, 6, 1)
    assert pool_blocks(x, 2).flatten().tolist() == [1.0, 5.0, 9.0]
    assert pool_blocks(x, 2, causal=True).flatten().tolist() == [0.0, 3.0, 10.0]


def test_causal_pooling_reads_no_later_token() -> None:
    x = torch.randn(2, 12, 3)
    pooled = pool_blocks(x, 4, causal=True)
    for token in range(12):
        changed = x.clone()
        changed[:, token:] = 1e4 * torch.randn(2, 12 - token, 3)
        after = pool_blocks(changed, 4, causal=True)
        seen = -(-token // 4)  # blocks that start before this token
        assert torch.equal(after[:, :seen], pooled[:, :seen])


def test_pooling_sums_bfloat16_in_float32() -> None:
    x = torch.full((1, 1024, 1), 1.0).bfloat16()
    assert pool_blocks(x, 1024).item() == 1024.0


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"shared": True}], ids=str)
def test_block_scores_eager_equals_reference(options: dict[str, bool]) -> None:
    q, k = torch.randn(2, 3, 2, 12, 5, dtype=DOUBLE)
    for mask in masks(3, 12):
        results = [
            block_scores(q, k, 4, key_padding_mask=mask, backend=backend, **options)
            for backend in ("eager", "reference")
        ]
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"shared": True}], ids=str)
def test_block_scores_ignore_padding(options: dict[str, bool]) -> None:
    q, k = torch.randn(2, 3, 2, 12, 4).unbind()
    mask = torch.arange(12) % 5 == torch.tensor([[2], [3], [9]])  # no padding in the last sample
    expected = block_scores(q, k, 4, key_padding_mask=mask, **options)
    for bad in (float("nan"), float("inf")):
        poisoned = [x.masked_fill(mask[:, None, :, None], bad).requires_grad_() for x in (q, k)]
        for backend in ("eager", "reference"):
            y = block_scores(*poisoned, 4, key_padding_mask=mask, backend=backend, **options)
            torch.testing.assert_close(y, expected)
            assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), poisoned))


def test_sorting_by_a_permutation_permutes() -> None:
    blocks = torch.randn(2, 3, 4, 5, 6, dtype=DOUBLE)
    order = torch.tensor([2, 0, 3, 1])
    sort = torch.nn.functional.one_hot(order, 4).to(DOUBLE).expand(2, 3, 4, 4)
    for backend in ("eager", "reference"):
        assert torch.equal(sort_blocks(blocks, sort, backend=backend), blocks[:, :, order])


def test_sorting_eager_equals_reference_with_gradients() -> None:
    blocks = torch.randn(2, 3, 4, 2, dtype=DOUBLE, requires_grad=True)
    sort = torch.rand(2, 5, 3, dtype=DOUBLE, requires_grad=True)
    expected = sort_blocks(blocks, sort, backend="reference")
    torch.testing.assert_close(sort_blocks(blocks, sort), expected)
    assert torch.autograd.gradcheck(sort_blocks, (blocks, sort))


@pytest.mark.parametrize("rule", ["majority", "argmax"])
@pytest.mark.parametrize("num_null", [0, 2])
def test_sorted_mask_eager_equals_reference(num_null: int, rule: str) -> None:
    sort = torch.rand(3, 2, 4, num_null + 4, dtype=DOUBLE)
    sort[0, 0, 1] = 0.0
    for mask in masks(3, 12):
        results = [
            sorted_padding_mask(sort, 3, mask, rule=rule, num_null=num_null, backend=backend)
            for backend in ("eager", "reference")
        ]
        assert torch.equal(*results)
        assert results[0][0, 0, 1].all()


def test_sorted_mask_weights_valid_tokens() -> None:
    mask = torch.tensor([[False, False, False, True]])
    sort = torch.tensor([[[[0.6, 0.4], [0.4, 0.6]]]])
    expected = [[False, False], [False, True]]
    assert sorted_padding_mask(sort, 2, mask)[0, 0].tolist() == expected
    # A row counts with its proportions if its sum has not converged to one.
    assert sorted_padding_mask(0.1 * sort, 2, mask)[0, 0].tolist() == expected


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_half_of_the_weight_is_enough(backend: str) -> None:
    mask = torch.tensor([[False, False, True, True]])
    sort = torch.full((1, 1, 2, 2), 0.5)
    assert not sorted_padding_mask(sort, 2, mask, backend=backend).any()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: pool_blocks(torch.randn(1, 7, 2), 2), "block_size"),
        (lambda: pool_blocks(torch.randn(7, 2), 2), "x"),
        (
            lambda: pool_blocks(torch.randn(1, 4, 2), 2, key_padding_mask=torch.ones(1, 4)),
            "key_padding_mask",
        ),
        (lambda: block_scores(torch.randn(1, 1, 4, 2), torch.randn(1, 1, 6, 2), 2), "k"),
        (
            lambda: block_scores(*torch.randn(2, 1, 1, 4, 2), 2, causal=True, shared=True),
            "shared",
        ),
        (lambda: sort_blocks(torch.randn(1, 3, 2, 2), torch.randn(1, 3, 2)), "sort"),
        (lambda: sort_blocks(torch.randn(3, 2), torch.randn(3)), "blocks"),
        (lambda: sorted_padding_mask(torch.randn(1, 1, 2, 2), 2, rule="half"), "rule"),
        (lambda: sorted_padding_mask(torch.randn(1, 1, 2, 2), 2, num_null=2), "num_null"),
        (
            lambda: sorted_padding_mask(torch.randn(1, 1, 2, 2), 2, torch.ones(1, 5) > 0),
            "key_padding_mask",
        ),
    ],
)
def test_bad_input_names_the_argument(call, name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}:"):
        call()
