from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from fake_comparison import comparison, table_of, unfinished, with_perplexity
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rifflemix.lab.comparison.pages.plot import (
    Box,
    Disk,
    _area_per_byte,
    _points,
    _round_sizes,
    comparison_figure,
    comparison_plot,
    place_labels,
)


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


SMALL, LARGE = (900, 690), (1350, 840)


@pytest.mark.parametrize(
    ("mixers", "size"), [(1, SMALL), pytest.param(30, LARGE, marks=pytest.mark.slow)]
)
def test_plot_draws_any_number_of_mixers(mixers: int, size: tuple[int, int]) -> None:
    assert size_of(comparison_plot(table_of(comparison(mixers=mixers, seeds=2)))) == size


@pytest.mark.slow
def test_plot_is_deterministic() -> None:
    assert comparison_plot(table_of(comparison())) == comparison_plot(table_of(comparison()))


def test_plot_without_results_has_a_message() -> None:
    assert size_of(comparison_plot(table_of(unfinished()))) == SMALL


def one_speed(results: dict[str, Any]) -> dict[str, Any]:
    for entry in (*results["mixers"], *results["runs"]):
        entry["steps_per_second"] = 5.0
    return results


def perfect(results: dict[str, Any]) -> dict[str, Any]:
    for entry in results["mixers"]:
        entry["test"] |= {"mean": 1.0, "std": None}
    return results


def unknown_speed(results: dict[str, Any]) -> dict[str, Any]:
    results["mixers"][0]["steps_per_second"] = None
    for run in results["runs"]:
        if run["mixer"] == "softmax":
            run["steps_per_second"] = None
    return results


def test_vertical_axis_is_the_selection_metric() -> None:
    results = with_perplexity(comparison(mixers=2))
    means = [entry["metric"]["test"]["mean"] for entry in results["mixers"]]
    assert [point.score for point in _points(table_of(results))] == means


def test_negative_scores_have_labels() -> None:
    results = with_perplexity(comparison(mixers=2))
    for entry in results["mixers"]:
        entry["metric"]["test"]["mean"] *= -1.0
    axes = comparison_figure(table_of(results)).axes[0]
    shown = [axes.yaxis.get_major_formatter()(value) for value in axes.get_yticks()]
    assert "-10" in shown
    assert all(shown)


@pytest.mark.parametrize("change", [one_speed, perfect, unknown_speed, with_perplexity])
def test_plot_of_extreme_results(change: Any) -> None:
    comparison_plot(table_of(change(comparison(seeds=1))))


def test_disk_area_is_proportional_to_memory() -> None:
    points = _points(table_of(comparison()))
    scale = _area_per_byte(points)
    largest, smallest = max(p.memory for p in points), min(p.memory for p in points)
    assert largest * scale == pytest.approx(48.0**2)
    assert smallest * scale == pytest.approx(48.0**2 * smallest / largest)


def test_colours_do_not_depend_on_finished_runs() -> None:
    results = comparison()
    full = {point.label: point.colour for point in _points(table_of(results))}
    results["mixers"][1]["test"] = None
    part = {point.label: point.colour for point in _points(table_of(results))}
    assert part == {label: colour for label, colour in full.items() if label != "Csp"}


@pytest.mark.parametrize(
    ("largest", "labels"),
    [
        (56 * 2**20, ["50 MiB", "12.5 MiB", "2.5 MiB"]),
        (999, ["500 B", "125 B", "25 B"]),
        (2**30, ["1 GiB", "0.25 GiB", "0.05 GiB"]),
        (1023 * 2**20, ["1000 MiB", "250 MiB", "50 MiB"]),
    ],
)
def test_legend_shows_round_sizes(largest: int, labels: list[str]) -> None:
    sizes = _round_sizes(largest)
    assert [label for _, label in sizes] == labels
    assert all(size <= largest for size, _ in sizes)


@pytest.mark.parametrize(
    ("x", "y", "distance"),
    [(12, 23, 0), (7, 16, 5), (17, 30, 5), (7, 30, 5), (17, 16, 5), (12, 11, 9), (20, 21, 6)],
)
def test_distance_to_a_box(x: float, y: float, distance: float) -> None:
    assert Box(10, 20, 4, 6).distance_to(x, y) == distance


def test_overlap_of_boxes() -> None:
    box = Box(10, 20, 4, 6)
    assert box.overlap(Box(12, 23, 4, 6)) == Box(12, 23, 4, 6).overlap(box) == 2 * 3
    assert box.overlap(Box(11, 21, 1, 2)) == 2
    assert box.overlap(Box(14, 20, 4, 6)) == box.overlap(Box(0, 0, 5, 5)) == 0


AREA = Box(0, 0, 1000, 700)


def test_labels_of_clustered_disks_do_not_overlap() -> None:
    disks = [Disk(500 + 25 * (i % 4), 350 + 18 * (i // 4), 15) for i in range(12)]
    boxes = place_labels(disks, [(110, 18)] * 12, AREA)
    for a, b in itertools.combinations(boxes, 2):
        assert a.overlap(b) < 1
    for box, disk in itertools.product(boxes, disks):
        assert box.distance_to(disk.x, disk.y) > 0


@hypothesis_settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.floats(0, 1000), st.floats(0, 700), st.floats(2, 60)), min_size=1, max_size=8
    )
)
def test_labels_stay_inside_and_do_not_overlap(places: list[tuple[float, float, float]]) -> None:
    disks = [Disk(*place) for place in places]
    boxes = place_labels(disks, [(90, 16)] * len(disks), AREA)
    assert len(boxes) == len(disks)
    for box in boxes:
        assert box.overlap(AREA) == pytest.approx(90 * 16)
    for a, b in itertools.combinations(boxes, 2):
        assert a.overlap(b) < 0.25 * 90 * 16
