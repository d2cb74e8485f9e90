"""Shared style of all figures: 1200 pixels wide, few colors, gray for the rest."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rifflemix.lab.analysis.finding import as_array

# Okabe and Ito's palette without its yellow; safe for the common kinds of color blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#bdbdbd"
MAP = "cividis"  # readable with and without color blindness
DPI = 120
_WIDTH = 10.0  # inches


def new_figure(height: float) -> Figure:
    """Create a figure of 1200 pixels by `height` inches."""
    with matplotlib.style.context("default"):
        return Figure(figsize=(_WIDTH, height), dpi=DPI, layout="constrained")


def panels(
    count: int, *, height: float = 2.9, most: int = 4, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Create a figure with `count` panels, at most `most` per row.

    Spare places stay empty.
    """
    columns = min(count, most)
    rows = math.ceil(count / columns)
    figure = new_figure(height * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes[:count]


def tidy(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Set title and axis labels, add a grid, remove the box."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=10)
    axes.set_ylabel(y, fontsize=10)
    axes.tick_params(labelsize=9)
    axes.grid(visible=True, color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def picture(axes: Axes, values: Any, *, title: str = "", **options: Any) -> Any:
    """Draw a matrix or an image pixel by pixel, without ticks."""
    settings: dict[str, Any] = {"cmap": MAP, "interpolation": "nearest", "aspect": "equal"}
    shown = axes.imshow(as_array(values), **(settings | options))
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    return shown


def chosen_layers(count: int, most: int) -> list[int]:
    """Choose at most `most` of `count` layers, evenly spaced.

    The first and the last layer are included. A single layer is the middle one.
    """
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count // 2]
    return sorted({round(step * (count - 1) / (most - 1)) for step in range(most)})


def line_style(number: int) -> dict[str, Any]:
    """Return color and marker of line `number`; the marker helps without color."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def layer_ticks(axes: Axes, count: int) -> None:
    """Set integer ticks for layers 1 to `count`, with a margin."""
    axes.set_xlim(0.5, count + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def from_zero(axes: Axes) -> None:
    """Set the y-axis to start at 0, with room for markers."""
    high = axes.dataLim.ymax if axes.dataLim.ymax > 0 else 1.0
    axes.set_ylim(-0.03 * high, 1.07 * high)


def legend(axes: Axes) -> None:
    """Add a legend in the corner with the most space."""
    axes.legend(fontsize=9, frameon=False)
