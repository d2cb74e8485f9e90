"""Sorts and ranks with gradients everywhere: projections onto the permutahedron."""

from __future__ import annotations

from torch import Tensor

from rifflemix.checks import check_positive
from rifflemix.ops.permutation import unchecked
from rifflemix.ops.permutation.arguments import check_groups, check_values


def soft_sort(
    x: Tensor,
    num_groups: int = 1,
    *,
    temperature: float,
    key_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Sort every channel within groups and smooth steep steps.

    Let w be the G sorted values of a group in one channel. The permutahedron of w is the set of all
    averages of permutations of w. The result is the point of the permutahedron that is nearest to
    (0, 1, .., G - 1) / temperature.

    A steep run of adjacent values becomes a line through the mean of the run that rises by
    1 / temperature per token. All other values are the sorted values. The sum does not change. If
    no two adjacent values differ by more than 1 / temperature, the result is equal to
    `group_sort(x, num_groups, order="ascending")` to the last bit. At high temperatures all values
    become the mean.

    The gradient of a run is shared equally by all tokens of the run. Use `-soft_sort(-x)` for
    descending order.

    Args:
        x: (B, N, C) tokens.
        num_groups: groups K, a divisor of N, of contiguous tokens.
        temperature: strength of the regularization in ranks per unit of the values, above 0.
        key_padding_mask: (B, N) bool, True = padding. The valid tokens of a group are sorted over
            the valid positions of the group.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, N, C), zero at padded positions. If a channel contains an infinity or NaN in a group, it
        becomes NaN in that group.

    Raises:
        InputError: wrong shape or dtype, a number that is not a divisor, or an invalid temperature.

    Source: docs/learned-permutations.md; Blondel, Teboul, Berthet and Djolonga 2020, "Fast
    Differentiable Sorting and Ranking", with quadratic regularization, ascending.
    """
    groups, strength = _check(x, num_groups, temperature, key_padding_mask)
    return unchecked.soft_sort(x, groups, strength, key_padding_mask, backend)


def soft_rank(
    x: Tensor,
    num_groups: int = 1,
    *,
    temperature: float,
    key_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Rank the values of each channel and group, with gradients.

    Rank 0 is the smallest value.

    The result is the point nearest to values / temperature among all averages of permutations of
    0, 1, .., G - 1. If all sorted neighbors differ by at least the temperature, the result contains
    the exact ranks. In a run of closer values, a rank is the mean rank of the run plus
    (value - mean value of the run) / temperature. Equal values have equal ranks. The sum of the
    ranks does not change. At high temperatures all ranks become (G - 1) / 2.

    Args:
        x: (B, N, C) tokens.
        num_groups: groups K, a divisor of N, of contiguous tokens.
        temperature: strength of the regularization, in units of the values; above 0.
        key_padding_mask: (B, N) bool, True = padding. Only valid tokens of a group are ranked.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, N, C) in the dtype of x, zero at padded positions. (bfloat16 represents all integers
        only up to 256.) If a channel contains an infinity or NaN in a group, it becomes NaN in that
        group.

    Raises:
        InputError: wrong shape or dtype, a number that is not a divisor, or an invalid temperature.

    Source: docs/learned-permutations.md; Blondel, Teboul, Berthet and Djolonga 2020, "Fast
    Differentiable Sorting and Ranking", with quadratic regularization. In the paper, rank 1 is the
    largest value.
    """
    groups, strength = _check(x, num_groups, temperature, key_padding_mask)
    return unchecked.soft_rank(x, groups, strength, key_padding_mask, backend)


def _check(
    x: Tensor, num_groups: int, temperature: float, mask: Tensor | None
) -> tuple[int, float]:
    check_values(x, mask)
    groups, _ = check_groups(x, num_groups)
    return groups, check_positive("temperature", temperature)
