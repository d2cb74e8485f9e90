"""Scores over seeds, and differences between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rifflemix.lab.comparison.paired import Difference, paired_difference
from rifflemix.lab.comparison.spread import SeedSpread
from rifflemix.lab.report.units import SHARES, format_percent

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
        values: seed -> the metric.
        deviation: of a metric that is no share of the samples: its standard error from samples
            that are drawn, times the root of their number. None where it was not measured.
        of_all: what all rows of the table say together of the variance over seeds.
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

    def __str__(self) -> str:
        """Percent: "98.77 ± 0.12"."""
        spread = "" if self.std is None else f" ± {self._text(self.std)}"
        return f"{self._text(self.mean)}{spread}"

    @property
    def shown(self) -> float:
        """The mean as printed, so that two mixers that print alike tie."""
        return float(self._text(self.mean))

    @property
    def counts_samples(self) -> bool:
        """Whether the error of the finite split is known."""
        return bool(self.samples) and (self.metric in SHARES or self.deviation is not None)

    def difference(self, other: Score) -> Difference | None:
        """Our score minus the other, paired over common seeds; None for fewer than two of them.

        The same samples judge both, which the error of the test set does not make use of: it
        errs on the side of no difference.
        """
        errors = self._sampling_error(self.mean), other._sampling_error(other.mean)
        return paired_difference(self.values, other.values, math.hypot(*errors), self.of_all)

    def is_above(self, chance: float) -> bool:
        """Whether a share, the best of a table, is above what no learning gives."""
        error = math.hypot(self._seed_error(), self._sampling_error(chance))
        return self.mean - chance > _OF_THE_BEST * error

    def _seed_error(self) -> float:
        return max(self.spread or 0.0, self.std or 0.0) / math.sqrt(self.n)

    def _sampling_error(self, mean: float) -> float:
        """Standard error that the finite split gives a mean; 0 where it is not known."""
        if not self.counts_samples or not self.samples:
            return 0.0
        deviation = self.deviation
        if deviation is None:
            deviation = math.sqrt(max(mean * (1 - mean), 0.0))  # binomial: a share of samples
        return deviation / math.sqrt(self.samples)

    def _text(self, value: float) -> str:
        return format_percent(value) if self.metric in SHARES else f"{value:.4g}"


def pooled_spread(stds: Iterable[tuple[float | None, int]]) -> float | None:
    """Standard deviation over seeds from those of all mixers, with their numbers of seeds."""
    known = [(std, n - 1) for std, n in stds if std is not None]
    if not known:
        return None
    freedom = sum(count for _, count in known)
    return math.sqrt(sum(count * std**2 for std, count in known) / freedom)
