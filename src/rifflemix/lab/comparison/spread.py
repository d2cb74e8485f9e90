"""The variance over seeds: what all rows of a table say of it together, as few seeds say little."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

_FEWEST = 3  # rows: two have one difference, which knows its own variance


@dataclass(frozen=True)
class SeedSpread:
    """How much scores vary over seeds, by all rows of a table.

    Attributes:
        variance: about which the rows' own lie.
        freedom: degrees of freedom that it counts for beside a row's own, few where the rows
            differ more in it than by chance.
    """

    variance: float
    freedom: float

    def of_difference(self, variance: float, freedom: int) -> tuple[float, float]:
        """The variance of a difference of two rows, and its degrees of freedom.

        Args:
            variance: that of the difference itself, over the seeds.
            freedom: seeds less one.
        """
        total = self.freedom + freedom
        both = self.freedom * 2 * self.variance + freedom * variance  # two rows vary
        return both / total, total


def seed_spread(rows: Sequence[Mapping[int, float]]) -> SeedSpread | None:
    """What rows say together, from the score of each seed; None of fewer than three.

    What a seed does to all rows alike, who share its data and its weights, is taken out first: a
    difference of two rows does not have it.

    Source: Smyth 2004, Linear models and empirical Bayes methods for assessing differential
    expression in microarray experiments, section 6.2: the logarithms of the variances have a mean
    and a variance that the degrees of freedom give, and what they vary beyond is the rows' own. Of
    the degrees of freedom that come out, at most those of all rows, half are counted: they are
    estimates, and rows of unlike spreads would be told apart too often.
    """
    rows = [row for row in rows if len(row) > 1]
    seeds = set.intersection(*(set(row) for row in rows)) if rows else set()
    if len(rows) < _FEWEST or len(seeds) < 2:
        return None
    common = {seed: statistics.fmean(row[seed] for row in rows) for seed in seeds}
    share = 1 - 1 / len(rows)  # of a row's variance that is left beside the mean over rows
    found = [statistics.variance([row[s] - common[s] for s in seeds]) / share for row in rows]
    known = [variance for variance in found if variance > 0]
    if len(known) < _FEWEST:
        return None
    half = (len(seeds) - 1) * share / 2
    centred = [math.log(variance) - _digamma(half) + math.log(half) for variance in known]
    own = statistics.variance(centred) - _trigamma(half)
    middle, freedom = statistics.fmean(centred), 2 * half * len(known)
    if own > 0:
        prior = _inverse_trigamma(own)
        middle += _digamma(prior) - math.log(prior)
        freedom = min(freedom, 2 * prior)
    return SeedSpread(math.exp(middle), freedom / 2)


def _digamma(x: float) -> float:
    return float(torch.special.digamma(torch.tensor(x, dtype=torch.float64)))


def _trigamma(x: float) -> float:
    return float(torch.special.polygamma(1, torch.tensor(x, dtype=torch.float64)))


def _inverse_trigamma(y: float) -> float:
    """The x with trigamma(x) = y, by halving: trigamma falls from infinity to 0."""
    low, high = 1e-8, 1e8
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > y else (low, middle)
    return math.sqrt(low * high)
