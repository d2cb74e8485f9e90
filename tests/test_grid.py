"""Grids of settings: points, names and the best point."""

from __future__ import annotations

from typing import Any

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.runs.status import check_grid, grid_points, point_label, ranked_points


def test_points_are_all_combinations_in_order() -> None:
    assert grid_points({}) == [{}]
    assert grid_points({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


@pytest.mark.parametrize(
    ("point", "label"),
    [
        ({"lr": 0.003}, "lr=0.003"),
        ({"lr": 1e-5, "dim": 64}, "lr=1e-05,dim=64"),
        ({"mixer_options.mode": "a/b c"}, "mixer_options.mode=a_b_c"),
        ({"sizes": [1, 2]}, "sizes=_1,_2_"),
    ],
)
def test_labels_can_be_folders(point: dict[str, Any], label: str) -> None:
    assert point_label(point) == label


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"lr": []}, "lr:"),
        ({"lr": [0.1, 0.2, 1e-1]}, r"lr: .*got 0.1\b"),
        ({"mode": ["a b", "a/b"]}, "mode: "),
        ({"a": range(40), "b": range(40)}, r"a, b: .*\b1,000\b.*got 1,600\b"),
    ],
)
def test_invalid_grids_are_refused(grid: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_grid(grid)


@pytest.mark.parametrize(
    ("scores", "higher", "lower"),
    [
        ([[0.5], [0.7], [0.6]], 1, 0),
        ([[0.5, 0.9], [0.7, 0.7]], 0, 0),  # ties: the first
        ([[0.9], [0.1, 0.2], [0.2, 0.3]], 2, 1),  # a point that diverged with one seed
        ([[], [0.1]], 1, 1),
        ([[], []], 0, 0),
    ],
)
def test_the_best_point(scores: list[list[float]], higher: int, lower: int) -> None:
    assert ranked_points(scores, higher_is_better=True)[0] == higher
    assert ranked_points(scores, higher_is_better=False)[0] == lower
