"""Grids of settings: every combination of values is a point with the same training budget."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rifflemix.errors import bad_argument

Point = dict[str, Any]
Grid = Mapping[str, Sequence[Any]]

# A larger number is most likely a typing error.
MOST_POINTS = 1_000

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.,=+-]+")


def check_grid(grid: Grid) -> None:
    """Raise InputError unless every setting has distinct values with distinct folder names."""
    for name, values in grid.items():
        if not values:
            raise bad_argument(name, "at least one value", "none")
        for index, value in enumerate(values):
            if value in values[:index]:
                raise bad_argument(name, "each value only once", f"{value!r} twice")
    points = grid_points(grid)
    label, count = Counter(map(point_label, points)).most_common(1)[0]
    if count > 1:
        raise bad_argument(", ".join(grid), "values that differ in letters and digits", label)


def grid_points(grid: Grid) -> list[Point]:
    """Return every combination of values; the last setting changes fastest.

    An empty grid has one point without settings.

    Raises:
        InputError: the grid has more than MOST_POINTS points.
    """
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > MOST_POINTS:
        expected = f"at most {MOST_POINTS:,} combinations"
        raise bad_argument(", ".join(grid), expected, f"{count:,}")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def point_label(point: Mapping[str, Any]) -> str:
    """Return the name of a point in folders and tables: "lr=0.003,dim=64"."""
    return _NOT_IN_NAMES.sub("_", ",".join(f"{name}={value}" for name, value in point.items()))


def best_point(scores: Sequence[Sequence[float]], *, higher_is_better: bool) -> int:
    """Return the index of the best point.

    Args:
        scores: scores of each point, one per seed that did not diverge.
        higher_is_better: whether higher scores are better.

    Returns:
        Index of the point with the best mean among the points with the most scores. If means are
        equal, the first point.
    """
    sign = 1.0 if higher_is_better else -1.0

    def rank(index: int) -> tuple[int, float]:
        of = scores[index]
        return len(of), sign * statistics.fmean(of) if of else 0.0

    return max(range(len(scores)), key=rank)
