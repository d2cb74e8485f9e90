"""Differences between mixers: paired over seeds, with a t interval and Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    ours: Mapping[int, float], theirs: Mapping[int, float], sampling_error: float = 0.0
) -> Difference | None:
    """The difference of two mixers' scores, seed by seed.

    Two errors add up: that over seeds, with n - 1 degrees of freedom, and that of the finite
    test set, which is the same for every seed. The degrees of freedom of their sum are those of
    Welch and Satterthwaite.

    Args:
        ours: seed -> score.
        theirs: the same of the other mixer.
        sampling_error: standard error of the difference that comes from the size of the test set.

    Returns:
        None where fewer than two seeds have both scores: then nothing is known of the noise.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return None
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    over_seeds = statistics.variance(differences) / len(seeds)
    variance = over_seeds + sampling_error**2
    if variance == 0.0:
        return Difference(mean, mean, mean, 1.0 if mean == 0.0 else 0.0, len(seeds))
    error = math.sqrt(variance)
    # The square of a ratio: the variances themselves may be too small to be squared.
    freedom = (len(seeds) - 1) * (variance / over_seeds) ** 2 if over_seeds else math.inf
    reach = student_quantile(LEVEL, freedom) * error
    probability = student_tails(mean / error, freedom)
    return Difference(mean, mean - reach, mean + reach, probability, len(seeds))


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
