"""Tests of ranks, residuals and counts against closed forms and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rifflemix.lab.analysis.kinds.measures import (
    displacement,
    distinct_permutations,
    effective_rank,
    entropy,
    rank_residual,
    second_over_first,
    selection_values,
    singular_values,
    stable_rank,
)


def test_singular_values_use_only_valid_rows() -> None:
    x = torch.randn(2, 7, 5)
    mask = torch.tensor([[False] * 7, [False, True, False, False, True, True, False]])
    found = singular_values(x, mask)
    for sample in range(2):
        rows = x[sample].double().numpy()[~mask[sample].numpy()]
        expected = np.zeros(5)
        values = np.linalg.svd(rows, compute_uv=False)
        expected[: len(values)] = values
        np.testing.assert_allclose(found[sample].numpy(), expected, atol=1e-12)


def test_ranks_equal_a_worked_example() -> None:
    values = torch.tensor([[3.0, 3.0, 3.0], [5.0, 0.0, 0.0], [2.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    shares = np.array([0.5, 0.25, 0.25])
    assert effective_rank(values).tolist() == pytest.approx(
        [3.0, 1.0, np.exp(-(shares * np.log(shares)).sum()), 0.0]
    )
    assert stable_rank(values).tolist() == pytest.approx([3.0, 1.0, 1.5, 0.0])


def test_the_second_singular_value_over_the_first() -> None:
    values = torch.tensor([[4.0, 1.0, 0.5], [0.0, 0.0, 0.0]])
    assert second_over_first(values).tolist() == [0.25, 0.0]
    assert second_over_first(values[:, :1]).tolist() == [0.0, 0.0]


def test_singular_values_of_selections_agree_with_their_matrices() -> None:
    index = torch.tensor([[2, 1, 0], [0, 1, 0], [1, 1, 3]])  # (3 outputs, 3 channels) of 4 rows
    found = selection_values(index, 4)
    for channel in range(3):
        matrix = torch.eye(4)[index[:, channel]]
        expected = torch.linalg.svdvals(matrix.double())
        torch.testing.assert_close(found[channel], expected)


def test_residual_equals_a_worked_example() -> None:
    equal = torch.ones(1, 4, 3) * torch.tensor([1.0, -2.0, 5.0])
    assert rank_residual(equal).tolist() == [0.0]
    x = torch.tensor([[[0.0, 0.0], [2.0, 1.0], [-2.0, 3.0], [9.0, 9.0]]])
    mask = torch.tensor([[False, False, False, True]])
    # Medians (0, 1): column sums 4 and 3, row sums 1, 2 and 4; for x: 4 and 4; 0, 3 and 5.
    assert rank_residual(x, mask).tolist() == pytest.approx([(16 / 20) ** 0.5])
    assert rank_residual(x, torch.ones_like(mask)).tolist() == [0.0]


def test_median_row_minimizes_the_column_sums() -> None:
    """The median minimizes the 1-norm, so no other row has smaller column sums."""
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    centre = x.quantile(0.5, dim=1, keepdim=True)
    best = (x - centre).abs().sum(1)
    for _ in range(50):
        other = centre + 0.1 * torch.randn(1, 1, 4, dtype=torch.float64)
        assert bool(((x - other).abs().sum(1) >= best - 1e-12).all())


def test_entropy_of_zeros_and_of_equal_shares() -> None:
    assert entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist() == pytest.approx(
        [0.0, np.log(2)]
    )


def test_displacement_and_distinct_permutations() -> None:
    index = torch.tensor([[[1, 0, 1], [0, 1, 0], [2, 2, 2]]])
    mask = torch.tensor([[False, False, True]])
    assert displacement(index).tolist() == [-1, 0, -1, 1, 0, 1, 0, 0, 0]
    assert displacement(index, mask).tolist() == [-1, 0, -1, 1, 0, 1]
    numbers, shares = distinct_permutations(index)
    assert numbers.tolist() == [2]
    assert shares.tolist() == pytest.approx([2 / 3])
