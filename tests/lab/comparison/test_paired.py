from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from rifflemix.lab.comparison.statistics import (
    LEVEL,
    holm,
    paired_difference,
    student_quantile,
    student_tails,
)


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3, 7.3, 50, 1e3, 1e6])
def test_students_distribution_equals_tables(freedom: float) -> None:
    for t in (0.0, 0.1, 1.0, -2.0, 4.0, 12.7, 100.0, 1e5):
        expected = 2 * scipy.stats.t.sf(abs(t), freedom)
        assert student_tails(t, freedom) == pytest.approx(expected, rel=1e-8, abs=1e-300)
    for level in (0.05, 0.5, 1e-6):
        expected = scipy.stats.t.isf(level / 2, freedom)
        assert student_quantile(level, freedom) == pytest.approx(expected, rel=1e-7)


def test_quantile_of_nan_is_none() -> None:
    assert math.isnan(student_quantile(0.05, math.nan))


def test_without_seed_error_the_distribution_is_normal() -> None:
    assert student_tails(1.3, math.inf) == pytest.approx(2 * scipy.stats.norm.sf(1.3))
    for level in (0.05, 0.5, 1e-6):
        expected = scipy.stats.norm.isf(level / 2)
        for freedom in (math.inf, 1e12):
            assert student_quantile(level, freedom) == pytest.approx(expected, rel=1e-9)
    found = paired_difference({0: 0.9, 1: 0.8}, {0: 0.85, 1: 0.75}, sampling_error=0.04)
    assert found is not None
    assert found.probability == pytest.approx(2 * scipy.stats.norm.sf(0.05 / 0.04))
    assert found.high - found.mean == pytest.approx(scipy.stats.norm.isf(0.025) * 0.04)


def test_paired_t_test() -> None:
    ours, theirs = [0.91, 0.80, 0.95, 0.7], [0.88, 0.79, 0.90, 0.71]
    found = paired_difference(dict(enumerate(ours)), dict(enumerate(theirs)))
    expected = scipy.stats.ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert found is not None
    assert found.probability == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.seeds == 4


def test_only_common_seeds_count() -> None:
    found = paired_difference({0: 1.0, 1: 2.0, 7: 99.0}, {0: 0.5, 1: 1.0, 2: -99.0})
    assert found is not None
    assert (found.mean, found.seeds) == (0.75, 2)
    assert paired_difference({0: 1.0, 1: 2.0}, {1: 1.0}) is None


@pytest.mark.parametrize("shift", [0.0, -0.05], ids=["shown", "hardly any"])
def test_seed_error_and_test_error_add_up(shift: float) -> None:
    """Check that an interval is as wide as the quantiles of both errors together."""
    ours = {0: 0.90 + shift, 1: 0.94 + shift, 2: 0.92 + shift}
    theirs = {0: 0.85, 1: 0.86, 2: 0.89}
    alone = paired_difference(ours, theirs)
    both = paired_difference(ours, theirs, sampling_error=0.02)
    assert alone is not None
    assert both is not None
    over_seeds = scipy.stats.sem([0.05, 0.08, 0.03])
    assert both.mean == pytest.approx(0.16 / 3 + shift)

    def reach(level: float) -> float:
        seeds = over_seeds * scipy.stats.t.isf(level / 2, 2)
        return math.hypot(seeds, 0.02 * scipy.stats.norm.isf(level / 2))

    assert reach(both.probability) == pytest.approx(both.mean, rel=1e-6)
    assert (both.low, both.high) == pytest.approx(
        (both.mean - reach(0.05), both.mean + reach(0.05))
    )
    assert both.probability > alone.probability
    vanishing = paired_difference(ours, theirs, sampling_error=1e-9)
    assert vanishing is not None
    assert vanishing.probability == pytest.approx(alone.probability, rel=1e-6)


@pytest.mark.parametrize(("seeds", "ratio"), [(2, 0.5), (3, 0.25)])
def test_equal_mixers_are_rarely_significantly_different(seeds: int, ratio: float) -> None:
    """Draw fourteen equal rows; Holm's correction may mark one in at most 5 % of tables.

    With estimated degrees of freedom (Welch and Satterthwaite), many more rows would be marked.
    """
    draws = np.random.default_rng(seeds)
    sampling, tables = ratio / math.sqrt(seeds), 100
    false = 0
    for _ in range(tables):
        probabilities = []
        for _ in range(14):
            scores = draws.normal(size=seeds) + draws.normal(scale=sampling)
            zeros = dict.fromkeys(range(seeds), 0.0)
            found = paired_difference(dict(enumerate(scores)), zeros, sampling)
            assert found is not None
            probabilities.append(found.probability)
        false += min(holm(probabilities)) < LEVEL
    assert false <= 0.05 * tables + 2 * math.sqrt(0.05 * 0.95 * tables)


@pytest.mark.parametrize(("theirs", "probability"), [(0.5, 1.0), (0.4, 0.0)])
def test_without_error_only_equal_values_are_equal(theirs: float, probability: float) -> None:
    found = paired_difference({0: 0.5, 1: 0.5}, {0: theirs, 1: theirs})
    assert found is not None
    assert found.probability == probability
    assert found.low == found.mean == found.high


def test_holm_correction() -> None:
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_seeds_with_equal_differences_show_a_difference() -> None:
    """The variance over seeds is then rounding error, and the degrees of freedom overflow."""
    ours, theirs = {0: 0.90, 1: 0.91, 2: 0.92}, {0: 0.80, 1: 0.81, 2: 0.82}
    found = paired_difference(ours, theirs, sampling_error=0.01)
    assert found is not None
    assert found.probability == pytest.approx(math.erfc(10 / math.sqrt(2)))
    assert found.low == pytest.approx(0.1 - 1.959964 * 0.01)


@pytest.mark.parametrize("freedom", [9e6, 1.1e7, 1e9, 1e16, 1e60])
def test_students_distribution_with_many_degrees_of_freedom(freedom: float) -> None:
    for t in (0.5, 2.0, 5.0):
        expected = 2 * scipy.stats.t.sf(t, freedom)
        assert student_tails(t, freedom) == pytest.approx(expected, rel=1e-9)
