"""Differences between mixers: paired over seeds, with a t interval and Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

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
        return self._reach(student_quantile(level, self.freedom) if self.over_seeds else 0.0, level)

    def probability(self, difference: float) -> float:
        """The level whose reach the difference is."""
        size = abs(difference)
        alone = [student_tails(size / self.over_seeds, self.freedom)] if self.over_seeds else []
        alone += [student_tails(size / self.sampling, math.inf)] if self.sampling else []
        least = max(alone)  # either error alone reaches less far than both
        if len(alone) == 1 or least >= 1.0 or least == 0.0:
            return least

        def beyond(t: float) -> float:
            return self._reach(t, student_tails(t, self.freedom)) - size

        most = (
            size / self.over_seeds if least == alone[0] else student_quantile(least, self.freedom)
        )
        return student_tails(_root(beyond, most), self.freedom)

    def _reach(self, t: float, level: float) -> float:
        """Of a level, whose quantile of Student's distribution is t."""
        return math.hypot(
            self.over_seeds * t, self.sampling and self.sampling * normal_quantile(level)
        )


def _root(function: Callable[[float], float], high: float) -> float:
    """Where a rising function is 0 between 0 and `high`, by the Illinois method.

    It is the secant method with a bracket: an end that stays twice loses half its value.
    """
    ends, values = [0.0, high], [function(0.0), function(high)]
    if values[1] <= 0.0:  # but for rounding it is the root
        return high
    for _ in range(200):
        if abs(ends[1] - ends[0]) <= 1e-13 * high or values[1] == 0.0:
            break
        new = ends[1] - values[1] * (ends[1] - ends[0]) / (values[1] - values[0])
        value = function(new)
        if value * values[1] > 0:
            values[0] /= 2
        else:
            ends[0], values[0] = ends[1], values[1]
        ends[1], values[1] = new, value
    return ends[1]


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


@lru_cache(maxsize=1024)
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
