"""Score against training speed, disk area proportional to memory, as the papers draw it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from rifflemix.lab.comparison.decisions import BASELINE
from rifflemix.lab.comparison.labels import Box, Disk, place_labels
from rifflemix.lab.comparison.table import Row, comparison_rows
from rifflemix.lab.report.figure import figure_png
from rifflemix.lab.report.units import SHARES, metric_title, metric_value
from rifflemix.text import plot_text

# Okabe and Ito's palette without its yellow, which is too light for outlines; safe for all
# common kinds of colour blindness. Every disk carries its name, so repeats do no harm.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_BASELINE_COLOUR = "#444444"
_DPI = 150
_LOG_FROM_RATIO = 6.0
_SMALLEST_DISK = 4.0  # diameter in points under which a disk could not be seen


@dataclass(frozen=True)
class _Point:
    label: str
    colour: str
    speed: float
    speed_range: tuple[float, float]
    score: float
    score_std: float | None
    memory: int


def comparison_plot(results: Mapping[str, Any]) -> bytes:
    """plot.png, see `comparison_figure`."""
    with matplotlib.style.context("default"):
        return figure_png(comparison_figure(results))


def comparison_figure(results: Mapping[str, Any]) -> Figure:
    """A disk for each mixer that has finished at least one run.

    Across, training steps per second (median over seeds, bar from slowest to fastest); up, the
    metric that chose the weights, on the test split (mean over seeds, bar of one standard
    deviation); disk area, peak memory of a step.
    """
    points = _points(results)
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(9.0, 5.6), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)  # which measures the texts
        axes, legend = figure.subplots(1, 2, width_ratios=(6, 1))
        _set_titles(axes, results)
        if points:
            _draw(figure, axes, legend, points, comparison_rows(results)[0].metric)
        else:
            axes.text(0.5, 0.5, "no run has finished yet", transform=axes.transAxes, ha="center")
            legend.axis("off")
    return figure


def _points(results: Mapping[str, Any]) -> list[_Point]:
    speeds: dict[str, list[float]] = {}
    for run in results["runs"]:
        if run["steps_per_second"] is not None:
            speeds.setdefault(run["mixer"], []).append(run["steps_per_second"])
    colours = _colours(comparison_rows(results))
    return [
        _Point(
            label=plot_text(row.title),
            colour=colours[row.name],
            speed=row.steps_per_second,
            speed_range=(min(speeds[row.name]), max(speeds[row.name])),
            score=metric_value(row.metric, row.test.mean),
            score_std=None if row.test.std is None else metric_value(row.metric, row.test.std),
            memory=row.peak_memory_bytes,
        )
        for row in comparison_rows(results)
        if row.test and row.steps_per_second and row.peak_memory_bytes
    ]


def _colours(rows: list[Row]) -> dict[str, str]:
    others = [row.name for row in rows if row.name != BASELINE]
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(others)}
    return {**colours, BASELINE: _BASELINE_COLOUR}


def _set_titles(axes: Axes, results: Mapping[str, Any]) -> None:
    axes.set_title(plot_text(results["task"]["title"]), loc="left", fontsize=11)
    axes.set_xlabel("training steps per second (further right is faster)")
    first = comparison_rows(results)[0]
    better = "" if first.higher_is_better else " (further down is better)"
    axes.set_ylabel(plot_text(f"test {metric_title(first.metric)}{better}"))
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw(figure: Figure, axes: Axes, legend: Axes, points: Sequence[_Point], metric: str) -> None:
    area_per_byte = _area_per_byte(points)
    _set_limits(axes, points, metric)
    _draw_memory_legend(figure, legend, points, area_per_byte)
    for point in sorted(points, key=lambda p: -p.memory):
        _draw_disk(axes, point, area_per_byte)
    figure.draw_without_rendering()  # fixes the layout, so that positions on the screen are known
    _draw_labels(figure, axes, points, area_per_byte)


def _area_per_byte(points: Sequence[_Point]) -> float:
    """Square points of marker area a byte: the largest disk shrinks as disks grow in number."""
    largest_diameter = 64.0 if len(points) <= 8 else max(30.0, 64.0 * math.sqrt(8 / len(points)))
    return largest_diameter**2 / max(point.memory for point in points)


def _marker_area(point: _Point, area_per_byte: float) -> float:
    return max(point.memory * area_per_byte, _SMALLEST_DISK**2)


def _set_limits(axes: Axes, points: Sequence[_Point], metric: str) -> None:
    slowest = min(point.speed_range[0] for point in points)
    fastest = max(point.speed_range[1] for point in points)
    if fastest / slowest > _LOG_FROM_RATIO:
        axes.set_xscale("log")
        margin = (fastest / slowest) ** 0.15
        axes.set_xlim(slowest / margin, fastest * margin)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        pad = max(0.2 * (fastest - slowest), 0.15 * fastest)
        axes.set_xlim(max(slowest - pad, 0.0), fastest + pad)
    low = min(point.score - (point.score_std or 0.0) for point in points)
    high = max(point.score + (point.score_std or 0.0) for point in points)
    # A scale that passes 100 %, or 0, would promise what cannot be; some metrics can be negative.
    most = metric_value(metric, 1.0) if metric in SHARES else math.inf
    least = 0.0 if min(point.score for point in points) >= 0 else -math.inf
    pad = max(0.2 * (high - low), 1.0 if metric in SHARES else 0.01 * high) or 1.0
    axes.set_ylim(low - pad, high + pad)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if least <= value <= most else "")
    )


def _draw_disk(axes: Axes, point: _Point, area_per_byte: float) -> None:
    axes.scatter(
        point.speed,
        point.score,
        s=_marker_area(point, area_per_byte),
        facecolor=(point.colour, 0.28),
        edgecolor=point.colour,
        linewidth=1.2,
        clip_on=False,
    )
    slowest, fastest = point.speed_range
    axes.errorbar(
        point.speed,
        point.score,
        xerr=[[point.speed - slowest], [fastest - point.speed]],
        yerr=point.score_std,
        color=point.colour,
        marker="o",
        markersize=3,
        linewidth=1.0,
        capsize=2.5,
    )


def _draw_labels(
    figure: Figure, axes: Axes, points: Sequence[_Point], area_per_byte: float
) -> None:
    per_point = figure.dpi / 72  # pixels
    frame = axes.get_window_extent()
    halo = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    texts = [
        axes.text(0, 0, point.label, fontsize=9, color="#111111", path_effects=halo, transform=None)
        for point in points
    ]
    sizes = [(e.width + 4, e.height + 2) for e in (text.get_window_extent() for text in texts)]
    disks, bars = [], []
    for point in points:
        x, y = axes.transData.transform((point.speed, point.score))
        radius = math.sqrt(_marker_area(point, area_per_byte)) / 2 * per_point
        disks.append(Disk(x, y, radius))
        bars += _error_bars(axes, point)
    area = Box(frame.x0, frame.y0, frame.width, frame.height)
    boxes = place_labels(disks, sizes, area, bars)
    for text, disk, box, point in zip(texts, disks, boxes, points, strict=True):
        x, y = box.centre
        text.set(position=(x, y), ha="center", va="center")
        if box.distance_to(disk.x, disk.y) > disk.radius + 6 * per_point:
            _draw_leader(axes, disk, box, point.colour)


def _error_bars(axes: Axes, point: _Point) -> list[Box]:
    """Where a disk's two error bars lie on the screen, caps included."""
    cap = 2.5 * axes.figure.dpi / 72
    std = point.score_std or 0.0
    left, middle = axes.transData.transform((point.speed_range[0], point.score))
    right, _ = axes.transData.transform((point.speed_range[1], point.score))
    centre, bottom = axes.transData.transform((point.speed, point.score - std))
    _, top = axes.transData.transform((point.speed, point.score + std))
    return [
        Box(left, middle - cap, right - left, 2 * cap),
        Box(centre - cap, bottom, 2 * cap, top - bottom),
    ]


def _draw_leader(axes: Axes, disk: Disk, box: Box, colour: str) -> None:
    """A thin line from a label that had to stand away to the centre of its disk."""
    x = min(max(disk.x, box.x), box.x + box.width)
    y = min(max(disk.y, box.y), box.y + box.height)
    axes.annotate(
        "",
        xy=(disk.x, disk.y),
        xytext=(x, y),
        xycoords="figure pixels",
        textcoords="figure pixels",
        arrowprops={
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.8,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )


def _draw_memory_legend(
    figure: Figure, axes: Axes, points: Sequence[_Point], area_per_byte: float
) -> None:
    """Three disks of round sizes, drawn to the same scale as the plot's."""
    axes.axis("off")
    axes.set_title("disk area =\npeak memory of\na training step", fontsize=8, loc="center")
    height = figure.get_figheight() * 72
    axes.set(xlim=(-1, 1), ylim=(-height, 0))
    top = -10.0
    for size, label in _round_sizes(max(point.memory for point in points)):
        diameter = math.sqrt(size * area_per_byte)
        axes.scatter(
            0,
            top - diameter / 2,
            s=size * area_per_byte,
            facecolor=(_BASELINE_COLOUR, 0.15),
            edgecolor=_BASELINE_COLOUR,
            clip_on=False,
        )
        axes.text(0, top - diameter - 14, label, ha="center", va="center", fontsize=8)
        top -= diameter + 34


def _round_sizes(largest: int) -> list[tuple[float, str]]:
    """Bytes and label: the largest 1, 2 or 5 times ten to some power that fits, its 4th, 20th."""
    exponent = int(math.log(max(largest, 1), 1024))
    unit, name = 1024**exponent, ("B", "KiB", "MiB", "GiB", "TiB")[exponent]
    power = 10 ** math.floor(math.log10(largest / unit))
    lead = max(step for step in (1, 2, 5) if step * power * unit <= largest)
    return [(value * unit, f"{value:g} {name}") for value in (lead * power / d for d in (1, 4, 20))]
