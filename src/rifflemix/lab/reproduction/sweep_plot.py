"""The curve of a sweep: the recipe's metric against the value of a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rifflemix.lab.report.figure import figure_png
from rifflemix.lab.reproduction.sweep_table import metric_words, point_words
from rifflemix.text import plot_text

# Okabe and Ito's, told apart by all eyes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
_VALIDATION = "#999999"
_LOG_FROM_RATIO = 10.0
_DPI = 150


def sweep_plot(results: Mapping[str, Any]) -> bytes:
    """PNG: a line for the test split (of several settings one for each value of the others).

    With one setting the validation split stands behind it in grey. Bars are one standard
    deviation over seeds.
    """
    grid: Mapping[str, Sequence[Any]] = results["config"]["grid"]
    # The axis is the longest setting of numbers, or the longest.
    axis = max(grid, key=lambda name: (_is_numeric(grid[name]), len(grid[name])))
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(8.0, 5.0), dpi=_DPI, layout="constrained")
        axes = figure.subplots()
        if len(grid) == 1:
            _line(
                axes, results["points"], axis, grid[axis], "validation", _VALIDATION, "validation"
            )
        for index, (label, points) in enumerate(_lines(results["points"], axis).items()):
            colour = _COLOURS[index % len(_COLOURS)]
            _line(axes, points, axis, grid[axis], "test", colour, label or "test")
        _set_axes(axes, results, axis, grid[axis])
        return figure_png(figure)


def _lines(points: Sequence[Mapping[str, Any]], axis: str) -> dict[str, list[Mapping[str, Any]]]:
    """The points of each combination of the other settings."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        others = {name: value for name, value in point["settings"].items() if name != axis}
        lines.setdefault(point_words(others), []).append(point)
    return lines


def _line(
    axes: Axes,
    points: Sequence[Mapping[str, Any]],
    axis: str,
    values: Sequence[Any],
    split: str,
    colour: str,
    label: str,
) -> None:
    known = [point for point in points if point[split] is not None]
    places = [_place(point["settings"][axis], values) for point in known]
    order = sorted(range(len(known)), key=places.__getitem__)
    axes.errorbar(
        [places[i] for i in order],
        [known[i][split]["mean"] for i in order],
        yerr=[known[i][split]["std"] or 0.0 for i in order],
        color=colour,
        marker="o",
        markersize=4,
        capsize=3,
        linewidth=1.4,
        label=label,
    )


def _set_axes(axes: Axes, results: Mapping[str, Any], axis: str, values: Sequence[Any]) -> None:
    axes.set_title(f"Sweep of {results['recipe']['name']}", loc="left", fontsize=11)
    axes.set_xlabel(axis)
    axes.set_ylabel(metric_words(results))
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if _is_numeric(values) and min(values) > 0 and max(values) / min(values) >= _LOG_FROM_RATIO:
        axes.set_xscale("log")
    axes.set_xticks([_place(value, values) for value in values], list(map(plot_text, values)))
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9)


def _place(value: Any, values: Sequence[Any]) -> float:
    """Where a value stands on the axis: itself, or its number in the list if it is no number."""
    return float(value) if _is_numeric(values) else float(list(values).index(value))


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
