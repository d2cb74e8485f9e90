"""Growth of cost with the number of tokens, and crossovers between two costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A measured exponent may lie this far above the claimed one before it contradicts it: a logarithm
# adds 1 / ln N, about 0.1 where it matters, and caches that no longer hold the tokens add a little.
_SLACK = 0.15
_STANDARD_ERRORS = 2.0
_FEWEST_POINTS = 3


@dataclass(frozen=True)
class Fit:
    """cost ~ N ** exponent over the upper half of a range of N, on a logarithmic scale.

    Attributes:
        exponent: slope of log cost against log N, by least squares.
        standard_error: of the slope; says how straight the line is.
        points: how many N took part.
        first_tokens, last_tokens: the range of N that took part.
    """

    exponent: float
    standard_error: float
    points: int
    first_tokens: int
    last_tokens: int

    def contradicts(self, claimed: float) -> bool:
        """Whether cost grows faster than claimed, beyond error and slack.

        Slower growth contradicts nothing: at moderate N the linear projections weigh in.
        """
        return self.exponent - _STANDARD_ERRORS * self.standard_error > claimed + _SLACK


@dataclass(frozen=True)
class Crossover:
    """Where one cost falls below another for good, within what was measured for both.

    Attributes:
        tokens: N of equal cost, interpolated; the first N measured if it is lower there already;
            None if it is not lower at the last N.
        always: it is lower at every N measured.
        first_tokens, last_tokens: the range of N measured for both.
    """

    tokens: float | None
    always: bool
    first_tokens: int
    last_tokens: int


def fit_exponent(costs: Mapping[int, float]) -> Fit | None:
    """Fit the upper half of the range of N; None for fewer than three points there.

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
    """Where `costs` fall below `others` for good; None if no N was measured for both.

    Args:
        costs: N -> seconds.
        others: N -> seconds of what it is compared with.
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
    """Between tokens[i] and tokens[i + 1], straight on logarithmic scales."""
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return float(tokens[i] * (tokens[i + 1] / tokens[i]) ** share)


def _least_squares(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and its standard error."""
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    slope = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    residuals = (b - mean_y - slope * (a - mean_x) for a, b in zip(x, y, strict=True))
    variance = math.fsum(r * r for r in residuals) / (len(x) - 2)
    return slope, math.sqrt(variance / spread)
