"""Growth of cost with the number of tokens, and crossovers between two costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A measured exponent contradicts the claim only if it is larger by more than this. A logarithmic
# factor adds 1 / ln N (about 0.1). Tokens that no longer fit into a cache add a little.
_SLACK = 0.15
_STANDARD_ERRORS = 2.0
_FEWEST_POINTS = 3


@dataclass(frozen=True)
class Fit:
    """Power law cost ~ N ** exponent, fitted to the upper half of the range of log N.

    Attributes:
        exponent: slope of log cost against log N, by least squares.
        standard_error: standard error of the slope.
        points: number of fitted points.
        first_tokens, last_tokens: fitted range of N.
    """

    exponent: float
    standard_error: float
    points: int
    first_tokens: int
    last_tokens: int

    def contradicts(self, claimed: float) -> bool:
        """Check whether cost grows faster than claimed, beyond error and slack.

        Slower growth is no contradiction: at moderate N, linear projections dominate the cost.
        """
        return self.exponent - _STANDARD_ERRORS * self.standard_error > claimed + _SLACK


@dataclass(frozen=True)
class Crossover:
    """Number of tokens N from which one cost stays below another.

    Attributes:
        tokens: interpolated N of equal cost. If the cost is lower at every N, the first N; if it
            is not lower at the last N, None.
        always: whether the cost is lower at every N.
        first_tokens, last_tokens: range of N measured for both costs.
    """

    tokens: float | None
    always: bool
    first_tokens: int
    last_tokens: int


def fit_exponent(costs: Mapping[int, float]) -> Fit | None:
    """Fit the upper half of the range of N.

    Returns None for fewer than three points.

    Args:
        costs: N -> seconds, all positive.
    """
    if not costs:
        return None
    middle = math.sqrt(min(costs) * max(costs))
    tokens = sorted(n for n in costs if n >= middle * (1 - 1e-9))
    if len(tokens) < _FEWEST_POINTS:
        return None
    slope, error = _least_squares(
        [math.log(n) for n in tokens], [math.log(costs[n]) for n in tokens]
    )
    return Fit(slope, error, len(tokens), tokens[0], tokens[-1])


def find_crossover(costs: Mapping[int, float], others: Mapping[int, float]) -> Crossover | None:
    """Find the N from which `costs` stay below `others`.

    Returns None if no N was measured for both.

    Args:
        costs: N -> seconds.
        others: N -> seconds of the comparison.
    """
    tokens = sorted(set(costs) & set(others))
    if not tokens:
        return None
    gaps = [math.log(costs[n] / others[n]) for n in tokens]
    last_loss = max((i for i, gap in enumerate(gaps) if gap >= 0), default=-1)
    if last_loss == len(tokens) - 1:
        return Crossover(None, False, tokens[0], tokens[-1])
    if last_loss < 0:
        return Crossover(float(tokens[0]), True, tokens[0], tokens[-1])
    crossing = _crossing(tokens, gaps, last_loss)
    return Crossover(crossing, False, tokens[0], tokens[-1])


def _crossing(tokens: Sequence[int], gaps: Sequence[float], i: int) -> float:
    """Interpolate the N of equal cost on logarithmic scales.

    It is between tokens[i] and tokens[i + 1].
    """
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return float(tokens[i] * (tokens[i + 1] / tokens[i]) ** share)


def _least_squares(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the slope and its standard error."""
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    slope = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    residuals = (b - mean_y - slope * (a - mean_x) for a, b in zip(x, y, strict=True))
    variance = math.fsum(r * r for r in residuals) / (len(x) - 2)
    return slope, math.sqrt(variance / spread)
