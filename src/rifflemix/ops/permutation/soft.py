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
    """Ascending sort of every channel within groups, whose steep places are smoothed.

    Of a group's G sorted values w, in each channel, it is the point nearest to
    (0, 1, .., G - 1) / temperature among all averages of orders of w, the permutahedron of w. Runs
    of neighbours become their mean, from which they rise by 1 / temperature a token; the others are
    the sorted values. The sum stays. Where no two neighbours are further apart than
    1 / temperature it is `group_sort(x, num_groups, order="ascending")` to the last bit; at high
    temperatures all become the mean.

    The gradient of a run goes in equal parts to all tokens of the run. `-soft_sort(-x)` sorts
    downwards.

    Args:
        x: (B, N, C) tokens.
        num_groups: groups K, a divisor of N, of contiguous tokens.
        temperature: ranks for a unit of the values: the strength of the regularisation, over 0.
        key_padding_mask: (B, N) bool, True = padding. A group's valid tokens are sorted among
            their own positions.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, N, C), zero at padded positions. A channel becomes NaN in a group where it holds an
        infinity or NaN.

    Raises:
        InputError: wrong shape or dtype, a number that does not divide, or a bad temperature.

    Source: docs/learned-permutations.md; Blondel, Teboul, Berthet and Djolonga 2020, "Fast
    Differentiable Sorting and Ranking", with quadratic regularisation, ascending.
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
    """Rank of every value in its channel and group, 0 for the smallest, with a gradient.

    It is the point nearest to the values / temperature among all averages of orders of
    0, 1, .., G - 1. Where no two neighbours in order are nearer than the temperature it holds the
    ranks themselves; nearer ones share their ranks' mean, from which they differ as they do / the
    temperature; equal ones have equal ranks. The sum is that of all ranks. At high temperatures
    all become (G - 1) / 2.

    Args:
        x: (B, N, C) tokens.
        num_groups: groups K, a divisor of N, of contiguous tokens.
        temperature: the strength of the regularisation, in units of the values; over 0.
        key_padding_mask: (B, N) bool, True = padding. Ranks are among a group's valid tokens.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, N, C) of the type of x (bfloat16 counts to 256 in ones), zero at padded positions. A
        channel becomes NaN in a group where it holds an infinity or NaN.

    Raises:
        InputError: wrong shape or dtype, a number that does not divide, or a bad temperature.

    Source: docs/learned-permutations.md; Blondel, Teboul, Berthet and Djolonga 2020, "Fast
    Differentiable Sorting and Ranking", with quadratic regularisation; there 1 is the rank of the
    largest.
    """
    groups, strength = _check(x, num_groups, temperature, key_padding_mask)
    return unchecked.soft_rank(x, groups, strength, key_padding_mask, backend)


def _check(
    x: Tensor, num_groups: int, temperature: float, mask: Tensor | None
) -> tuple[int, float]:
    check_values(x, mask)
    groups, _ = check_groups(x, num_groups)
    return groups, check_positive("temperature", temperature)
