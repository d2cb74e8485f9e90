"""Decisions between rows, used for bold, sentences, stars, p-values and ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from rifflemix.lab.comparison.statistics import LEVEL, Difference, Score, holm

BASELINE = "softmax"
RULE = (
    "paired t test, Holm-corrected over the differences from softmax attention and, separately, "
    "over those between the other mixers, 5 %"
)
"""When two mixers differ, in words."""

Ahead = frozenset[tuple[str, str]]
"""Names (winner, loser) of every decided pair of rows."""


@dataclass(frozen=True)
class Decision:
    """A score of one row minus the score of another row.

    Attributes:
        name, other: names of the two rows.
        difference: mean difference over the seeds that both rows have.
        probability: p-value, corrected for the number of pairs of its family.
        higher_is_better: direction of the score.
    """

    name: str
    other: str
    difference: Difference
    probability: float
    higher_is_better: bool

    @property
    def is_shown(self) -> bool:
        """Whether the difference is larger than noise."""
        return self.probability < LEVEL

    @property
    def is_loss(self) -> bool:
        """Whether the other row is better, by more than noise."""
        return self.is_shown and (self.difference.mean > 0) != self.higher_is_better


class Decisions:
    """All pairs of rows that share two seeds, each decided once.

    Two families are corrected separately (Holm, 5 % each): the pairs with the baseline, and all
    other pairs. So a question about the baseline does not lose power to questions about others.

    Args:
        scores: score of each row by name; rows without a score are None.
        higher_is_better: direction of the score.
        baseline: row of the first family. It may be absent.
    """

    def __init__(
        self,
        scores: Mapping[str, Score | None],
        higher_is_better: bool,
        baseline: str = BASELINE,
    ) -> None:
        self._pairs: dict[tuple[str, str], Decision] = {}
        pairs = list(combinations([name for name in scores if scores[name] is not None], 2))
        of_baseline = [(a, b) if b == baseline else (b, a) for a, b in pairs if baseline in (a, b)]
        for family in (of_baseline, [pair for pair in pairs if baseline not in pair]):
            found = [(pair, _difference(scores, *pair)) for pair in family]
            known = [(pair, difference) for pair, difference in found if difference is not None]
            corrected = holm([difference.probability for _, difference in known])
            for (pair, difference), probability in zip(known, corrected, strict=True):
                self._pairs[pair] = Decision(*pair, difference, probability, higher_is_better)

    def from_baseline(self, name: str, baseline: str = BASELINE) -> Decision | None:
        """Return the row minus the baseline; None if they share fewer than two seeds."""
        return self._pairs.get((name, baseline))

    def is_compared(self, name: str, other: str) -> bool:
        """Return whether two rows share two seeds."""
        return (name, other) in self._pairs or (other, name) in self._pairs

    @property
    def ahead(self) -> Ahead:
        """Every pair that differs by more than noise."""
        return frozenset(
            (of.other, of.name) if of.is_loss else (of.name, of.other)
            for of in self._pairs.values()
            if of.is_shown
        )


def unbeaten(names: Iterable[str], ahead: Ahead) -> list[str]:
    """Return the rows that no other row is ahead of; empty if no row is ahead of another."""
    known = list(names)
    losers = {loser for winner, loser in ahead if winner in known}
    return [name for name in known if name not in losers] if losers else []


def ahead_by(rows: Sequence[str], is_ahead: Callable[[str, str], bool]) -> Ahead:
    """Every ordered pair of names for which the first is ahead."""
    return frozenset((one, other) for one in rows for other in rows if is_ahead(one, other))


def _difference(scores: Mapping[str, Score | None], one: str, other: str) -> Difference | None:
    first, second = scores[one], scores[other]
    return None if first is None or second is None else first.difference(second)
