"""Grids of settings: every combination of values is a point, and all points get the same budget."""

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

# Beyond this a typing error is likelier than a wish.
MOST_POINTS = 1_000

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.,=+-]+")


def check_grid(grid: Grid) -> None:
    """Raise InputError unless every setting has values that differ, also as names of folders."""
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
    """Every combination, the last setting changing fastest; one without settings for no grid.

    Raises:
        InputError: more than MOST_POINTS.
    """
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > MOST_POINTS:
        expected = f"at most {MOST_POINTS:,} combinations"
        raise bad_argument(", ".join(grid), expected, f"{count:,}")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def point_label(point: Mapping[str, Any]) -> str:
    """What folders and tables call a point: "lr=0.003,dim=64"."""
    return _NOT_IN_NAMES.sub("_", ",".join(f"{name}={value}" for name, value in point.items()))


def best_point(scores: Sequence[Sequence[float]], *, higher_is_better: bool) -> int:
    """Which point comes out best.

    Args:
        scores: of each point, those of the seeds that did not diverge.
        higher_is_better: of the scores.

    Returns:
        Among the points with the most scores the one with the best mean; of equals the first.
    """
    sign = 1.0 if higher_is_better else -1.0

    def rank(index: int) -> tuple[int, float]:
        of = scores[index]
        return len(of), sign * statistics.fmean(of) if of else 0.0

    return max(range(len(scores)), key=rank)
