"""Plot the metric of a sweep against the value of a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rifflemix.lab.report.page import figure_png
from rifflemix.lab.reproduction.sweep_records import PointSummary, SweepResults, point_words
from rifflemix.text import plot_text

# Palette of Okabe and Ito, safe for color blindness.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
_VALIDATION = "#999999"
_LOG_FROM_RATIO = 10.0
_DPI = 150


def sweep_plot(results: SweepResults) -> bytes:
    """Plot the test split as a PNG, with one line for each value of the other settings.

    A sweep of one setting also shows the validation split in gray. Bars are one standard deviation
    over seeds.
    """
    grid: Mapping[str, Sequence[Any]] = results.config["grid"]
    # The axis shows the setting with most values. Numbers come before other settings.
    axis = max(grid, key=lambda name: (_is_numeric(grid[name]), len(grid[name])))
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(8.0, 5.0), dpi=_DPI, layout="constrained")
        axes = figure.subplots()
        if len(grid) == 1:
            _line(axes, results.points, axis, grid[axis], "validation", _VALIDATION, "validation")
        for index, (label, points) in enumerate(_lines(results.points, axis).items()):
            colour = _COLOURS[index % len(_COLOURS)]
            _line(axes, points, axis, grid[axis], "test", colour, label or "test")
        _set_axes(axes, results, axis, grid[axis])
        return figure_png(figure)


def _lines(points: Sequence[PointSummary], axis: str) -> dict[str, list[PointSummary]]:
    """Return the points of each combination of the other settings."""
    lines: dict[str, list[PointSummary]] = {}
    for point in points:
        others = {name: value for name, value in point.settings.items() if name != axis}
        lines.setdefault(point_words(others), []).append(point)
    return lines


def _line(
    axes: Axes,
    points: Sequence[PointSummary],
    axis: str,
    values: Sequence[Any],
    split: str,
    colour: str,
    label: str,
) -> None:
    known = [(p.settings, score) for p in points if (score := p.score(split)) is not None]
    places = [_place(settings[axis], values) for settings, _ in known]
    order = sorted(range(len(known)), key=places.__getitem__)
    axes.errorbar(
        [places[i] for i in order],
        [known[i][1].mean for i in order],
        yerr=[known[i][1].std or 0.0 for i in order],
        color=colour,
        marker="o",
        markersize=4,
        capsize=3,
        linewidth=1.4,
        label=label,
    )


def _set_axes(axes: Axes, results: SweepResults, axis: str, values: Sequence[Any]) -> None:
    axes.set_title(f"Sweep of {results.recipe.name}", loc="left", fontsize=11)
    axes.set_xlabel(axis)
    axes.set_ylabel(results.metric_words)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if _is_numeric(values) and min(values) > 0 and max(values) / min(values) >= _LOG_FROM_RATIO:
        axes.set_xscale("log")
    axes.set_xticks([_place(value, values) for value in values], list(map(plot_text, values)))
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9)


def _place(value: Any, values: Sequence[Any]) -> float:
    """Return the position on the axis: a number itself, or the index of another value."""
    return float(value) if _is_numeric(values) else float(list(values).index(value))


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
