"""Differences between mixers: paired over seeds, with a t interval and Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rifflemix.comparison.spread import SeedSpread

LEVEL = 0.05
"""Differences with a smaller (corrected) probability count as shown."""


# Beyond, the normal distribution is nearer to Student's than the continued fraction in rounded
# numbers, in which freedom + t^2 becomes freedom.
_NORMAL_FROM = 1e7


@dataclass(frozen=True)
class Difference:
    """One mixer's score minus another's.

    Attributes:
        mean: over the seeds that both have.
        low, high: its 95 % interval, not corrected for the number of comparisons.
        probability: of a difference as large where there is none (two-sided), not corrected.
        seeds: how many both have.
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
    """The difference of two mixers' scores, seed by seed.

    Two errors add up: that over seeds, estimated with n - 1 degrees of freedom and those that
    `spread` adds, and that of the finite test set, which is known and the same for every seed. A
    level's reach is the root of the sum of the squares of both errors' own: Student's quantile
    times the one, the normal quantile times the other. It is the t test without the second error
    and the normal test without the first. (Degrees of freedom by Welch and Satterthwaite would
    follow the estimate: where few seeds agree by chance they grow, and false differences with
    them.)

    Args:
        ours: seed -> score.
        theirs: the same of the other mixer.
        sampling_error: standard error of the difference that comes from the size of the test set.
        spread: what other rows of the table say of the variance over seeds.

    Returns:
        None where fewer than two seeds have both scores: then nothing is known of the noise.
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
    """Of a difference: that over seeds, with its degrees of freedom, and that of the test set."""

    over_seeds: float
    freedom: float
    sampling: float

    def reach(self, level: float) -> float:
        """What a difference exceeds with at most this probability where there is none."""
        seeds = self.over_seeds and self.over_seeds * student_quantile(level, self.freedom)
        return math.hypot(seeds, self.sampling and self.sampling * normal_quantile(level))

    def probability(self, difference: float) -> float:
        """The level whose reach the difference is, found by halving its logarithm."""
        size = abs(difference)
        alone = [student_tails(size / self.over_seeds, self.freedom)] if self.over_seeds else []
        alone += [student_tails(size / self.sampling, math.inf)] if self.sampling else []
        low = max(alone)  # either error alone reaches less far than both
        if len(alone) == 1 or low >= 1.0 or low == 0.0:
            return low
        low, high = math.log(low), 0.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (low, middle) if self.reach(math.exp(middle)) < size else (middle, high)
        return math.exp(high)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities corrected for their number (Holm 1979, A simple sequentially rejective ...).

    The chance that any true "no difference" falls below a level is then at most that level.
    """
    corrected = [0.0] * len(probabilities)
    highest = 0.0
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    for rank, index in enumerate(order):
        highest = max(highest, (len(order) - rank) * probabilities[index])
        corrected[index] = min(1.0, highest)
    return corrected


def student_tails(t: float, freedom: float) -> float:
    """Probability of |T| >= |t| for Student's T with so many degrees of freedom."""
    if freedom > _NORMAL_FROM:
        return math.erfc(abs(t) / math.sqrt(2))
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def normal_quantile(level: float) -> float:
    """The z that a standard normal number exceeds, up or down, with probability `level`."""
    return -statistics.NormalDist().inv_cdf(level / 2)


def student_quantile(level: float, freedom: float) -> float:
    """The t that |T| exceeds with probability `level`, by Newton's method.

    The tails fall ever more slowly, so no step from 0 on leads past that t.
    """
    t = 0.0
    while True:
        step = (student_tails(t, freedom) - level) / (2 * _student_density(t, freedom))
        t += step
        if not step > 1e-12 * t:  # not a number ends it too
            return t


def _student_density(t: float, freedom: float) -> float:
    if freedom > _NORMAL_FROM:
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    kernel = -(freedom + 1) / 2 * math.log1p(t * t / freedom)
    return math.exp(scale + kernel) / math.sqrt(freedom * math.pi)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b) (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    # The fraction converges fast on this side of the mean; on the other side it is mirrored.
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _continued_fraction(x, a, b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """1 + d_1 / (1 + d_2 / (1 + ...)) of DLMF 8.17.22, from the front (Lentz's method)."""
    value, upper, lower = 1.0, 1.0, 0.0
    for step in range(1, 10_000):
        m = step // 2
        if step % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1 / (1 + d * lower)
        upper = 1 + d / upper
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-15:
            break
    return value
