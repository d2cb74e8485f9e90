from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifflemix.lab.bench.scaling import Fit, find_crossover, fit_exponent

POWERS = [256 * 2**i for i in range(7)]


def power_law(exponent: float, factor: float = 1e-6) -> dict[int, float]:
    return {n: factor * n**exponent for n in POWERS}


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5, 2.0])
def test_a_power_law_gives_its_exponent(exponent: float) -> None:
    fit = fit_exponent(power_law(exponent))
    assert fit is not None
    assert fit.exponent == pytest.approx(exponent, abs=1e-9)
    assert fit.standard_error == pytest.approx(0, abs=1e-9)


def test_exponent_is_fitted_on_the_upper_half_of_the_range() -> None:
    costs = {n: (1.0 if n < 2048 else (n / 2048) ** 2) for n in POWERS}
    fit = fit_exponent(costs)
    assert fit is not None
    assert (fit.first_tokens, fit.last_tokens, fit.points) == (2048, 16384, 4)
    assert fit.exponent == pytest.approx(2.0)


def test_standard_error_equals_least_squares() -> None:
    # By hand: x = 0, 1, 2 in units of ln 2; y = 0, 2, 1 -> slope 1/2, residual sum 3/2.
    unit = math.log(2)
    fit = fit_exponent({n: math.exp(y * unit) for n, y in ((4, 0), (8, 2), (16, 1), (1, 0))})
    assert fit is not None
    assert fit.points == 3
    assert fit.exponent == pytest.approx(0.5)
    assert fit.standard_error == pytest.approx(math.sqrt(1.5 / 1 / 2))


@pytest.mark.parametrize("tokens", [[], [256], [256, 512], [256, 512, 1024]], ids=str)
def test_too_few_points_give_no_exponent(tokens: list[int]) -> None:
    assert fit_exponent({n: float(n) for n in tokens}) is None


@pytest.mark.parametrize(
    ("exponent", "error", "claimed", "contradicts"),
    [
        (1.10, 0.01, 1.0, False),  # N log N counts as 1
        (1.30, 0.01, 1.0, True),
        (1.30, 0.10, 1.0, False),  # within the error
        (1.70, 0.01, 2.0, False),  # projections contribute
        (2.30, 0.02, 2.0, True),
    ],
)
def test_only_steeper_growth_contradicts_a_claim(
    exponent: float, error: float, claimed: float, contradicts: bool
) -> None:
    assert Fit(exponent, error, 4, 1024, 8192).contradicts(claimed) is contradicts


@pytest.mark.parametrize(
    ("own", "other", "tokens", "always"),
    [
        ({1: 2.0, 4: 2.0}, {1: 1.0, 4: 4.0}, 2.0, False),
        ({1: 1.0, 4: 1.0}, {1: 2.0, 4: 4.0}, 1.0, True),
        ({1: 3.0, 4: 5.0}, {1: 2.0, 4: 4.0}, None, False),
        ({1: 1.0, 4: 5.0}, {1: 2.0, 4: 4.0}, None, False),  # faster only at first
        ({1: 1.0, 2: 3.0, 8: 3.0}, {1: 2.0, 2: 1.5, 8: 6.0}, 4.0, False),  # always faster from 4 on
        ({1: 1.0, 4: 1.0, 9: 9.0}, {1: 2.0, 4: 4.0}, 1.0, True),  # the other has no value at 9
    ],
    ids=["once", "always", "never", "lost again", "for good", "shared N only"],
)
def test_crossover_of_known_times(
    own: dict[int, float], other: dict[int, float], tokens: float | None, always: bool
) -> None:
    found = find_crossover(own, other)
    assert found is not None
    assert found.tokens == (None if tokens is None else pytest.approx(tokens))
    assert found.always is always
    assert found.last_tokens == max(other)


def test_no_common_lengths_give_no_crossover() -> None:
    assert find_crossover({1: 1.0}, {2: 1.0}) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.1, 10), min_size=7, max_size=7))
def test_all_lengths_after_the_crossover_are_faster(ratios: list[float]) -> None:
    own = dict(zip(POWERS, ratios, strict=True))
    found = find_crossover(own, dict.fromkeys(POWERS, 1.0))
    assert found is not None
    if found.tokens is None:
        assert ratios[-1] >= 1
        return
    later = [n for n in POWERS if n > found.tokens]
    assert all(own[n] < 1 for n in later)
    assert found.always or own[max(n for n in POWERS if n <= found.tokens * (1 + 1e-9))] >= 1
