"""Grids of settings, and common parts of training results."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks import Task
from rifflemix.lab.train.run_folder import Weights

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


def ranked_points(scores: Sequence[Sequence[float]], *, higher_is_better: bool) -> list[int]:
    """Return the indices of the points, the best first.

    A point with more scores is better. Of equally many, the point with the better mean is better.
    Points with equal means keep their order.

    Args:
        scores: scores of each point, one per seed that did not diverge.
        higher_is_better: whether higher scores are better.
    """
    sign = 1.0 if higher_is_better else -1.0

    def rank(index: int) -> tuple[int, float]:
        of = scores[index]
        return len(of), sign * statistics.fmean(of) if of else 0.0

    return sorted(range(len(scores)), key=rank, reverse=True)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Selection of weights and use of the test split.

    Attributes:
        model_chosen_on: "validation" or "last step".
        metric: metric that chooses.
        test_used_for: use of the test split.
        split_note: how the data was split.
    """

    model_chosen_on: str
    metric: str = "accuracy"
    test_used_for: str = ""
    split_note: str


def protocol(task: Task, weights: Weights = "best", *, tests_both: bool = False) -> Protocol:
    """Describe the selection of weights and the use of the test split."""
    both = "the weights of the last step and of the best evaluation"
    tested = both if tests_both else "the chosen weights"
    return Protocol(
        model_chosen_on="validation" if weights == "best" else "last step",
        metric=task.metric,
        test_used_for=f"reporting only, once, with {tested}",
        split_note=task.split_note,
    )


@dataclass(frozen=True)
class Summary:
    """A number over seeds.

    Attributes:
        mean: mean over the seeds.
        std: sample standard deviation; None for one seed.
        n: number of seeds.
        values: value of each seed.
    """

    mean: float
    std: float | None
    n: int
    values: list[float] = field(default_factory=list)


def summarise(values: Sequence[float]) -> Summary | None:
    """Summarize the values of several seeds; None without values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std, len(values), list(values))
