"""Scores over seeds, and paired differences between mixers with confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from rifflemix.lab.report.units import COUNTED, SHARES, format_percent

_FEWEST = 3  # rows; two rows have one difference, whose variance is measured directly


@dataclass(frozen=True)
class SeedSpread:
    """Variance of scores over seeds, estimated from all rows of a table.

    Attributes:
        variance: center of the variances of the rows.
        freedom: degrees of freedom that this variance adds to a row. It is small if the variances
            of the rows differ by more than chance.
    """

    variance: float
    freedom: float

    def of_difference(self, variance: float, freedom: int) -> tuple[float, float]:
        """Return the variance of a difference of two rows, and its degrees of freedom.

        Args:
            variance: variance of the difference over the seeds.
            freedom: number of seeds minus one.
        """
        total = self.freedom + freedom
        both = self.freedom * 2 * self.variance + freedom * variance  # two rows vary
        return both / total, total


def seed_spread(rows: Sequence[Mapping[int, float]]) -> SeedSpread | None:
    """Estimate the variance from the score of each seed; return None for fewer than three rows.

    The common effect of a seed is subtracted first. All rows share the data and the weights of a
    seed, so that the effect cancels in a difference of two rows.

    Source: Smyth 2004, Linear models and empirical Bayes methods for assessing differential
    expression in microarray experiments, section 6.2. The degrees of freedom determine the mean and
    the variance of the logarithms of the variances. Any further variation belongs to the rows. The
    resulting degrees of freedom, at most the sum over all rows, are halved: they are estimates, and
    the full number would find too many differences between rows of unequal variance.
    """
    rows = [row for row in rows if len(row) > 1]
    seeds = set.intersection(*(set(row) for row in rows)) if rows else set()
    if len(rows) < _FEWEST or len(seeds) < 2:
        return None
    common = {seed: statistics.fmean(row[seed] for row in rows) for seed in seeds}
    share = 1 - 1 / len(
        rows
    )  # share of a row's variance that remains after the mean over rows is subtracted
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
    """Solve trigamma(x) = y by bisection. trigamma decreases from infinity to 0."""
    low, high = 1e-8, 1e8
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > y else (low, middle)
    return math.sqrt(low * high)


LEVEL = 0.05
"""Differences with a smaller corrected p-value are significant."""


@dataclass(frozen=True)
class Difference:
    """One mixer's score minus another's.

    Attributes:
        mean: mean over the seeds that both mixers have.
        low, high: 95 % confidence interval, not corrected for the number of comparisons.
        probability: two-sided p-value, not corrected for the number of comparisons.
        seeds: number of seeds that both mixers have.
    """

    mean: float
    low: float
    high: float
    probability: float
    seeds: int


def paired_difference(
    ours: Mapping[int, float],
    theirs: Mapping[int, float],
    sampling_error: float = 0.0,
    spread: SeedSpread | None = None,
    overlap: float = 0.0,
) -> Difference | None:
    """Compare two mixers seed by seed.

    The difference has two errors. The error over seeds is estimated, with n - 1 degrees of freedom
    and those that `spread` adds. The error of the finite test set is known and equal for every
    seed. At a given level, each error has a critical value: its standard error times Student's or
    the normal quantile. The critical value of the difference is the root of the sum of both
    squares. Without the second error this is the t test, without the first the normal test.
    Welch and Satterthwaite's degrees of freedom are not used: they grow when few seeds agree by
    chance, and then find false differences.

    Args:
        ours: seed -> score.
        theirs: seed -> score of the other mixer.
        sampling_error: standard error of the difference due to the size of the test set.
        spread: variance over seeds, estimated from the other entries of the table.
        overlap: size of the test split divided by the training split, for runs on folds. It
            corrects for training splits that share samples.

    Returns:
        The difference, or None if fewer than two seeds have both scores.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return None
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    variance, freedom = statistics.variance(differences), float(len(seeds) - 1)
    if spread is not None:
        variance, freedom = spread.of_difference(variance, len(seeds) - 1)
    errors = _Errors(math.sqrt(variance * (1 / len(seeds) + overlap)), freedom, sampling_error)
    if errors.over_seeds == errors.sampling == 0.0:
        return Difference(mean, mean, mean, 1.0 if mean == 0.0 else 0.0, len(seeds))
    reach = errors.reach(LEVEL)
    return Difference(mean, mean - reach, mean + reach, errors.probability(mean), len(seeds))


@dataclass(frozen=True)
class _Errors:
    """Standard errors of a difference: over seeds, with its degrees of freedom, and sampling."""

    over_seeds: float
    freedom: float
    sampling: float

    def reach(self, level: float) -> float:
        """Compute the critical value at a level."""
        return self._reach(student_quantile(level, self.freedom) if self.over_seeds else 0.0, level)

    def probability(self, difference: float) -> float:
        """Find the level at which the difference equals the critical value."""
        size = abs(difference)
        alone = [student_tails(size / self.over_seeds, self.freedom)] if self.over_seeds else []
        alone += [student_tails(size / self.sampling, math.inf)] if self.sampling else []
        least = max(alone)  # a lower bound: both errors together have a larger critical value
        if len(alone) == 1 or least >= 1.0 or least == 0.0:
            return least

        def beyond(t: float) -> float:
            return self._reach(t, student_tails(t, self.freedom)) - size

        most = (
            size / self.over_seeds if least == alone[0] else student_quantile(least, self.freedom)
        )
        if beyond(most) <= 0.0:  # equal except for rounding
            return student_tails(most, self.freedom)
        from scipy.optimize import brentq

        return student_tails(brentq(beyond, 0.0, most, rtol=1e-14), self.freedom)

    def _reach(self, t: float, level: float) -> float:
        """Combine both critical values; t is Student's quantile at the level."""
        normal = student_quantile(level, math.inf) if self.sampling else 0.0
        return math.hypot(self.over_seeds * t, self.sampling * normal)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979, A simple sequentially rejective ...).

    The probability that any true null hypothesis falls below a level is at most that level.
    """
    corrected = [0.0] * len(probabilities)
    highest = 0.0
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    for rank, index in enumerate(order):
        highest = max(highest, (len(order) - rank) * probabilities[index])
        corrected[index] = min(1.0, highest)
    return corrected


def student_tails(t: float, freedom: float) -> float:
    """Return the probability of |T| >= |t|; infinite freedom is the normal distribution."""
    from scipy.special import stdtr

    return 2.0 * float(stdtr(freedom, -abs(t)))


def student_quantile(level: float, freedom: float) -> float:
    """Return the t with probability `level` of |T| >= t."""
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, level / 2))


_OF_THE_BEST = 3.0  # stricter than for two scores, because the best of many rows is a lucky one


@dataclass(frozen=True)
class Score:
    """The score of a mixer: the mean of a metric over seeds, with its errors.

    Tables show a share such as the accuracy (0 to 1) in percent, and other metrics in four digits.

    Attributes:
        mean: mean over the seeds.
        std: sample standard deviation over the seeds, with n - 1; None for a single seed.
        n: number of seeds.
        metric: name of the metric.
        spread: standard deviation over seeds, pooled over all rows of the table, because an
            estimate from the few seeds of one mixer is imprecise. None if no mixer has two seeds.
        samples: number of samples in the split; None if unknown.
        values: seed -> value of the metric.
        deviation: for a metric that is not a share of samples: its standard error over drawn
            samples, times the square root of their number. None if it was not measured.
        of_all: variance over seeds, estimated from all rows of the table.
        overlap: correction for folds, see `rifflemix.lab.comparison.plan.overlap_of_folds`.
    """

    mean: float
    std: float | None
    n: int
    metric: str = "accuracy"
    spread: float | None = None
    samples: int | None = None
    values: Mapping[int, float] = field(default_factory=dict)
    deviation: float | None = None
    of_all: SeedSpread | None = None
    overlap: float = 0.0

    def __str__(self) -> str:
        """Return the score as shown, such as "98.77 ± 0.12"."""
        spread = "" if self.std is None else f" ± {self._text(self.std)}"
        return f"{self._text(self.mean)}{spread}"

    @property
    def shown(self) -> float:
        """Return the mean as displayed, so that mixers with equal displays are tied."""
        return float(self._text(self.mean))

    @property
    def counts_samples(self) -> bool:
        """Whether the error due to the number of samples in the split is known."""
        return bool(self.samples) and (self.metric in COUNTED or self.deviation is not None)

    def difference(self, other: Score) -> Difference | None:
        """Return this score minus the other, paired over common seeds; None for fewer than two.

        The error of the test set does not use that both are tested on the same samples. It
        therefore finds too few differences rather than too many.
        """
        errors = self._sampling_error(self.mean), other._sampling_error(other.mean)
        return paired_difference(
            self.values, other.values, math.hypot(*errors), self.of_all, self.overlap
        )

    def is_above(self, chance: float) -> bool:
        """Return whether the best share of a table is above the share without learning."""
        error = math.hypot(self._seed_error(), self._sampling_error(chance))
        return self.mean - chance > _OF_THE_BEST * error

    def _seed_error(self) -> float:
        return max(self.spread or 0.0, self.std or 0.0) * math.sqrt(1 / self.n + self.overlap)

    def _sampling_error(self, mean: float) -> float:
        """Return the standard error of a mean from the finite split; 0 if unknown."""
        if not self.counts_samples or not self.samples:
            return 0.0
        deviation = self.deviation
        if deviation is None:
            deviation = math.sqrt(max(mean * (1 - mean), 0.0))  # binomial: a share of samples
        return deviation / math.sqrt(self.samples)

    def _text(self, value: float) -> str:
        return score_text(self.metric, value)


def score_text(metric: str, value: float) -> str:
    """Format a score as the table does: a share in percent, others with four digits."""
    return format_percent(value) if metric in SHARES else f"{value:.4g}"


def pooled_spread(stds: Iterable[tuple[float | None, int]]) -> float | None:
    """Pool the standard deviations over seeds of all mixers, given their numbers of seeds."""
    known = [(std, n - 1) for std, n in stds if std is not None]
    if not known:
        return None
    freedom = sum(count for _, count in known)
    return math.sqrt(sum(count * std**2 for std, count in known) / freedom)
