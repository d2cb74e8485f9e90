"""Paired differences between mixers, with confidence intervals and Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rifflemix.lab.comparison.spread import SeedSpread

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
    errors = _Errors(math.sqrt(variance / len(seeds)), freedom, sampling_error)
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
        least = max(alone)  # a lower bound: both errors together reach further than one
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
