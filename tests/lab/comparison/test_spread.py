"""Tests of the pooled variance over seeds of all rows of a table."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from rifflemix.lab.comparison.decisions import Decisions, unbeaten
from rifflemix.lab.comparison.statistics import (
    LEVEL,
    Score,
    SeedSpread,
    holm,
    paired_difference,
    seed_spread,
)

Rows = list[dict[int, float]]


def rows_of(scores: np.ndarray) -> Rows:
    return [dict(enumerate(row)) for row in scores.tolist()]


def test_equal_rows_give_their_common_variance() -> None:
    scores = np.random.default_rng(0).normal(scale=0.3, size=(400, 3))
    found = seed_spread(rows_of(scores))
    assert found is not None
    assert found.variance == pytest.approx(0.09, rel=0.1)
    assert found.freedom > 50


def test_effect_of_a_seed_on_all_rows_is_not_spread() -> None:
    """Check that seed effects common to all rows do not count."""
    draws = np.random.default_rng(1)
    own, common = draws.normal(size=(8, 3)), 100 * draws.normal(size=3)
    alone, together = seed_spread(rows_of(own)), seed_spread(rows_of(own + common))
    assert alone is not None
    assert together is not None
    assert together.variance == pytest.approx(alone.variance)
    assert together.freedom == pytest.approx(alone.freedom)


def test_rows_of_different_spreads_give_few_degrees_of_freedom() -> None:
    """Compare the degrees of freedom of the prior with scipy's trigamma function."""
    draws = np.random.default_rng(3)
    scores = np.exp(np.arange(-3, 3))[:, None] * draws.normal(size=(6, 7))
    found = seed_spread(rows_of(scores))
    assert found is not None
    left, share = scores - scores.mean(0), 5 / 6
    logs = np.log(left.var(1, ddof=1) / share)
    half = 6 * share / 2
    own = logs.var(ddof=1) - scipy.special.polygamma(1, half)
    assert own > 0
    prior = scipy.optimize.brentq(lambda x: scipy.special.polygamma(1, x) - own, 1e-3, 1e3)
    assert found.freedom == pytest.approx(min(prior, half * 6), rel=1e-6)
    mean = logs.mean() - scipy.special.digamma(half) + np.log(half)
    mean += scipy.special.digamma(prior) - np.log(prior)
    assert np.log(found.variance) == pytest.approx(mean)


def test_rows_of_equal_spread_keep_all_degrees_of_freedom() -> None:
    """Use four rows and two equally hard seeds, so that a row has the variance 8 / 3."""
    rows: Rows = [{0: 1.0, 1: -1.0}, {0: -1.0, 1: 1.0}] * 2
    found = seed_spread(rows)
    assert found is not None
    half = 3 / 4 / 2
    assert found.freedom == pytest.approx(4 * half)
    expected = np.log(8 / 3) - scipy.special.digamma(half) + np.log(half)
    assert np.log(found.variance) == pytest.approx(expected)
    assert seed_spread([*rows, {0: 99.0}]) == found  # one seed has no variance


def test_difference_has_a_separate_part_of_the_variance() -> None:
    spread = SeedSpread(variance=0.5, freedom=6.0)
    assert spread.of_difference(4.0, 2) == ((6 * 1.0 + 2 * 4.0) / 8, 8.0)
    found = paired_difference({0: 1.0, 1: 1.2, 2: 0.9}, {0: 0.5, 1: 0.5, 2: 0.5}, 0.0, spread)
    assert found is not None
    variance = (6 * 1.0 + 2 * np.var([0.5, 0.7, 0.4], ddof=1)) / 8
    t = found.mean / np.sqrt(variance / 3)
    assert found.probability == pytest.approx(2 * scipy.stats.t.sf(t, 8))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{0: 1.0, 1: 2.0}, {0: 1.5, 1: 2.5}],
        [{0: 1.0, 1: 2.0}, {0: 1.5, 1: 2.5}, {0: 3.0}],
        [{0: 1.0, 1: 2.0}, {0: 1.5, 1: 2.5}, {2: 1.0, 3: 4.0}],
        [{0: 1.0, 1: 2.0}, {0: 1.5, 1: 2.5}, {0: 0.5, 1: 1.5}],
    ],
)
def test_few_rows_seeds_or_differences_give_no_estimate(rows: Rows) -> None:
    assert seed_spread(rows) is None


@pytest.mark.parametrize(("rows", "unlike"), [(6, 0.0), (15, 0.7)])
def test_equal_rows_are_rarely_significantly_different(rows: int, unlike: float) -> None:
    """Compare every row with the first: one of twenty tables may show a false difference."""
    draws, tables, false = np.random.default_rng(rows), 150, 0
    for _ in range(tables):
        spreads = np.exp(unlike * draws.normal(size=(rows, 1)))
        scores = rows_of(spreads * draws.normal(size=(rows, 3)) + draws.normal(size=3))
        spread = seed_spread(scores)
        found = [paired_difference(scores[0], other, spread=spread) for other in scores[1:]]
        assert None not in found
        false += min(holm([of.probability for of in found if of is not None])) < LEVEL
    assert false <= 0.05 * tables + 2 * np.sqrt(0.05 * 0.95 * tables)


@pytest.mark.parametrize("baseline", ["row 0", "no row"])
@pytest.mark.parametrize(("rows", "seeds"), [(3, 3), (15, 10)])
def test_best_mixer_is_almost_always_bold(rows: int, seeds: int, baseline: str) -> None:
    """Draw equally good rows, and count the last row as the best."""
    draws, tables, lost = np.random.default_rng(rows), 100, 0
    names = [f"row {number}" for number in range(rows)]
    for _ in range(tables):
        values = rows_of(draws.normal(size=(rows, seeds)))
        spread = seed_spread(values)
        scores = {
            name: Score(
                float(np.mean([*of.values()])), None, seeds, "rmse", values=of, of_all=spread
            )
            for name, of in zip(names, values, strict=True)
        }
        found = Decisions(scores, higher_is_better=True, baseline=baseline)
        lost += bool(found.ahead) and names[-1] not in unbeaten(names, found.ahead)
    assert lost <= 0.05 * tables
