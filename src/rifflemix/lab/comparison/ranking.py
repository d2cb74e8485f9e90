"""Ranks over several comparisons that leave undecided what the noise leaves undecided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rifflemix.lab.comparison.differences import decisions
from rifflemix.lab.comparison.table import Row, baseline_row, comparison_rows, nothing_learned


@dataclass(frozen=True)
class Standing:
    """Where a mixer stands in one task, or on average over several.

    Attributes:
        rank: with every undecided difference shared by both, 1 is the best.
        low, high: with every undecided difference decided for it, and against it.
    """

    rank: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranking:
    """One task: who is shown to be ahead of whom.

    Attributes:
        ahead: (winner, loser) of every difference that is larger than noise; a mixer whose runs
            all failed is behind every other.
        names: of all mixers.
    """

    ahead: frozenset[tuple[str, str]]
    names: tuple[str, ...]

    def standing(self, name: str) -> Standing:
        """The rank of a mixer and its bounds."""
        better = sum(loser == name for _, loser in self.ahead)
        worse = sum(winner == name for winner, _ in self.ahead)
        low, high = 1.0 + better, float(len(self.names) - worse)
        return Standing((low + high) / 2, low, high)


def ranking(results: Mapping[str, Any]) -> Ranking | None:
    """The ranking of a comparison; None where it is not finished, or nothing learned.

    The pairs are those of `decisions`, which also decide bold and the sentences of the task.
    """
    rows = comparison_rows(results)
    if results["status"] != "complete" or nothing_learned(rows):
        return None
    finished = [row for row in rows if row.test is not None]
    ahead = {(row.name, other.name) for row in finished for other in rows if other.test is None}
    return Ranking(frozenset(ahead) | decisions(rows).ahead, tuple(row.name for row in rows))


def mean_standing(rankings: Sequence[Ranking], name: str) -> Standing | None:
    """The mean over tasks, and the means of the bounds; None without a task."""
    found = [ranking.standing(name) for ranking in rankings]
    if not found:
        return None
    return Standing(
        *(
            math.fsum(values) / len(found)
            for values in zip(*((s.rank, s.low, s.high) for s in found), strict=True)
        )
    )


def unbeaten(rankings: Sequence[Ranking]) -> list[str]:
    """Mixers whom no other is ahead of on more tasks than they are ahead of it."""
    if not rankings:
        return []

    def wins(one: str, other: str) -> int:
        return sum((one, other) in ranking.ahead for ranking in rankings)

    names = rankings[0].names
    return [name for name in names if all(wins(name, o) >= wins(o, name) for o in names)]


def mean_ratio(tables: Sequence[Sequence[Row]], name: str, what: str) -> float | None:
    """Geometric mean over tasks of a measure relative to softmax attention; None if unknown."""
    logs = []
    for rows in tables:
        row, base = next(row for row in rows if row.name == name), baseline_row(rows)
        ours, theirs = getattr(row, what), getattr(base, what, None)
        if not ours or not theirs:
            return None
        logs.append(math.log(ours / theirs))
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
