"""Scores over seeds, and which differences between them are larger than noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rifflemix.report.units import SHARES, format_percent

_OF_TWO = 2.0
_OF_THE_BEST = 3.0  # more than of two scores: the best of many rows is a lucky one


@dataclass(frozen=True)
class Score:
    """A metric over seeds.

    A share (accuracy) is in 0..1 and shown in percent, anything else in four digits.

    Attributes:
        mean, std, n: over the seeds; `std` (n - 1) is None for a single seed.
        metric: its name.
        spread: standard deviation over seeds, pooled over all rows of the table: two seeds of one
            mixer say little. None where no mixer has two.
        samples: size of the split; None where it is not known.
    """

    mean: float
    std: float | None
    n: int
    metric: str = "accuracy"
    spread: float | None = None
    samples: int | None = None

    def __str__(self) -> str:
        """Percent: "98.77 ± 0.12"."""
        spread = "" if self.std is None else f" ± {self._text(self.std)}"
        return f"{self._text(self.mean)}{spread}"

    @property
    def shown(self) -> float:
        """The mean as printed, so that two mixers that print alike tie."""
        return float(self._text(self.mean))

    @property
    def error(self) -> float | None:
        """Standard error of the mean: from the seeds and, for a share, from the number of samples.

        None where the spread is not known.
        """
        if self.spread is None:
            return None
        return math.hypot(self._seed_error(), self._sampling_error(self.mean))

    def differs(self, other: Score) -> bool:
        """Whether two scores are further apart than two standard errors of their difference.

        The same samples judge both, which their errors do not make use of: this errs on the side
        of no difference.
        """
        if self.error is None or other.error is None:
            return False
        return abs(self.mean - other.mean) > _OF_TWO * math.hypot(self.error, other.error)

    def is_above(self, chance: float) -> bool:
        """Whether a share, the best of a table, is above what no learning gives."""
        error = math.hypot(self._seed_error(), self._sampling_error(chance))
        return self.mean - chance > _OF_THE_BEST * error

    def _seed_error(self) -> float:
        return max(self.spread or 0.0, self.std or 0.0) / math.sqrt(self.n)

    def _sampling_error(self, share: float) -> float:
        """Standard error of a share of this many samples (binomial); 0 for other metrics."""
        if self.metric not in SHARES or not self.samples:
            return 0.0
        return math.sqrt(max(share * (1 - share), 0.0) / self.samples)

    def _text(self, value: float) -> str:
        return format_percent(value) if self.metric in SHARES else f"{value:.4g}"


def pooled_spread(stds: Iterable[tuple[float | None, int]]) -> float | None:
    """Standard deviation over seeds from those of all mixers, with their numbers of seeds."""
    known = [(std, n - 1) for std, n in stds if std is not None]
    if not known:
        return None
    freedom = sum(count for _, count in known)
    return math.sqrt(sum(count * std**2 for std, count in known) / freedom)
