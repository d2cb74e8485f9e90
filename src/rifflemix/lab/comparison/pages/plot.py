"""Plot of score against training speed. The disk area is proportional to memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.style
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from rifflemix.lab.comparison.decisions import BASELINE
from rifflemix.lab.comparison.rows import Row, Table
from rifflemix.lab.report.page import figure_png
from rifflemix.lab.report.units import SHARES, metric_title, metric_value
from rifflemix.text import plot_text

_ANGLES = 24
_GAPS = (3.0, 9.0, 18.0, 30.0, 45.0, 65.0, 90.0, 120.0)
_SWEEPS = 6
_LABEL_WEIGHT = 600.0
_CENTRE_WEIGHT = 40.0
_DISK_WEIGHT = 1.5
_BAR_WEIGHT = 8.0
_OUTSIDE_WEIGHT = 1000.0


@dataclass(frozen=True)
class Disk:
    """A disk in screen units."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Box:
    """A rectangle in screen units, by its lower left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the rectangle."""
        return self.x + self.width / 2, self.y + self.height / 2

    def overlap(self, other: Box) -> float:
        """Return the area shared with another box."""
        width = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        height = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return max(width, 0.0) * max(height, 0.0)

    def distance_to(self, x: float, y: float) -> float:
        """Return the distance from a point to the box."""
        dx = max(self.x - x, 0.0, x - self.x - self.width)
        dy = max(self.y - y, 0.0, y - self.y - self.height)
        return math.hypot(dx, dy)


def place_labels(
    disks: Sequence[Disk],
    sizes: Sequence[tuple[float, float]],
    area: Box,
    bars: Sequence[Box] = (),
) -> list[Box]:
    """Return a box for the label of each disk: near the disk, inside `area`, without overlap.

    Every label tries positions around its disk at increasing distances. Several sweeps choose the
    cheapest position of each label, given all others. The result is deterministic.

    Args:
        disks: what is labelled.
        sizes: (width, height) of each label.
        area: where labels may stand.
        bars: error bars, better not covered.
    """
    candidates = [_around(disk, size) for disk, size in zip(disks, sizes, strict=True)]
    fixed = [
        [_fixed_cost(box, disk, disks, bars, area) for box in boxes]
        for disk, boxes in zip(disks, candidates, strict=True)
    ]
    placed: list[Box | None] = [None] * len(disks)
    for _ in range(_SWEEPS):
        before = list(placed)
        for i in range(len(disks)):
            placed[i] = _cheapest(candidates[i], fixed[i], placed[:i] + placed[i + 1 :])
        if placed == before:
            break
    return [box for box in placed if box is not None]


def _around(disk: Disk, size: tuple[float, float]) -> list[Box]:
    """Yield boxes at each angle, at each distance from the disk."""
    width, height = size
    boxes = []
    for gap in _GAPS:
        for k in range(_ANGLES):
            cos, sin = _direction(k)
            reach = disk.radius + gap + _half_extent(cos, sin, width, height)
            x, y = disk.x + cos * reach, disk.y + sin * reach
            boxes.append(Box(x - width / 2, y - height / 2, width, height))
    return boxes


def _direction(k: int) -> tuple[float, float]:
    angle = 2 * math.pi * k / _ANGLES
    return math.cos(angle), math.sin(angle)


def _half_extent(cos: float, sin: float, width: float, height: float) -> float:
    """Return the distance from the middle of a box to its edge in a direction."""
    along_x = width / 2 / abs(cos) if abs(cos) > 1e-9 else math.inf
    along_y = height / 2 / abs(sin) if abs(sin) > 1e-9 else math.inf
    return min(along_x, along_y)


def _fixed_cost(
    box: Box, own: Disk, disks: Sequence[Disk], bars: Sequence[Box], area: Box
) -> float:
    """Return the cost of a position, without the overlap with other labels."""
    surface = box.width * box.height
    cost = max(box.distance_to(own.x, own.y) - own.radius, 0.0)
    outside = 1 - box.overlap(area) / surface
    cost += _OUTSIDE_WEIGHT * (1 + outside) if outside > 1e-9 else 0.0
    cost += _BAR_WEIGHT * sum(box.overlap(bar) > 0 for bar in bars)
    for disk in disks:
        distance = box.distance_to(disk.x, disk.y)
        if distance < disk.radius:
            cost += _DISK_WEIGHT * (disk.radius - distance)
        if distance < box.height / 3:
            cost += _CENTRE_WEIGHT
    return cost


def _cheapest(candidates: list[Box], fixed: list[float], others: Sequence[Box | None]) -> Box:
    """Return the cheapest position. Skip positions whose fixed cost is above the best total."""
    there = [other for other in others if other is not None]
    best = (math.inf, 0)
    for i in sorted(range(len(candidates)), key=fixed.__getitem__):
        if fixed[i] > best[0]:
            break
        box = candidates[i]
        shared = sum(box.overlap(other) for other in there)
        best = min(best, (fixed[i] + _LABEL_WEIGHT * shared / (box.width * box.height), i))
    return candidates[best[1]]


# Okabe and Ito's palette without its yellow, which is too light for outlines; safe for all
# common kinds of color blindness. Every disk has a label, so colors may repeat.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_BASELINE_COLOUR = "#444444"
_DPI = 150
# Size in inches: up to 8 mixers fit a small plot, with letters that a phone can show.
_FEW, _SMALL, _LARGE = 8, (6.0, 4.6), (9.0, 5.6)
_LOG_FROM_RATIO = 6.0
_SMALLEST_DISK = 4.0  # smallest visible diameter of a disk, in points


@dataclass(frozen=True)
class _Point:
    label: str
    colour: str
    speed: float
    speed_range: tuple[float, float]
    score: float
    score_std: float | None
    memory: int


def comparison_plot(table: Table) -> bytes:
    """Draw plot.png, see `comparison_figure`."""
    with matplotlib.style.context("default"):
        return figure_png(comparison_figure(table))


def comparison_figure(table: Table) -> Figure:
    """Draw a disk for each mixer that has finished at least one run.

    - Horizontal: training steps per second (median over seeds, bar from slowest to fastest).
    - Vertical: the metric that chose the weights on the test split (mean over seeds, bar of one
      standard deviation).
    - Disk area: peak memory of a training step.
    """
    points = _points(table)
    with matplotlib.style.context("default"):
        size = _SMALL if len(points) <= _FEW else _LARGE
        figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)  # this measures the texts
        axes, legend = figure.subplots(1, 2, width_ratios=(5, 1))
        _set_titles(axes, table)
        if points:
            _draw(figure, axes, legend, points, table.metric)
        else:
            axes.text(0.5, 0.5, "no run has finished yet", transform=axes.transAxes, ha="center")
            legend.axis("off")
    return figure


def _points(table: Table) -> list[_Point]:
    colour = colours(table.rows)
    return [
        _Point(
            label=plot_text(row.title),
            colour=colour[row.name],
            speed=row.steps_per_second,
            speed_range=(row.slowest or row.steps_per_second, row.fastest or row.steps_per_second),
            score=metric_value(row.metric, row.test.mean),
            score_std=None if row.test.std is None else metric_value(row.metric, row.test.std),
            memory=row.peak_memory_bytes,
        )
        for row in table.rows
        if row.test and row.steps_per_second and row.peak_memory_bytes
    ]


def colours(rows: list[Row]) -> dict[str, str]:
    """Choose the color of each mixer; softmax attention is gray."""
    others = [row.name for row in rows if row.name != BASELINE]
    of_others = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(others)}
    return {**of_others, BASELINE: _BASELINE_COLOUR}


def _set_titles(axes: Axes, table: Table) -> None:
    axes.set_title(plot_text(table.results.task.title), loc="left", fontsize=11)
    axes.set_xlabel("training steps per second (further right is faster)")
    better = "" if table.higher_is_better else " (further down is better)"
    axes.set_ylabel(plot_text(f"test {metric_title(table.metric)}{better}"))
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw(figure: Figure, axes: Axes, legend: Axes, points: Sequence[_Point], metric: str) -> None:
    area_per_byte = _area_per_byte(points)
    _set_limits(axes, points, metric)
    _draw_memory_legend(figure, legend, points, area_per_byte)
    for point in sorted(points, key=lambda p: -p.memory):
        _draw_disk(axes, point, area_per_byte)
    figure.draw_without_rendering()  # fixes the layout and thus the positions in pixels
    _draw_labels(figure, axes, points, area_per_byte)


def _area_per_byte(points: Sequence[_Point]) -> float:
    """Return the marker area per byte. More disks make the largest disk smaller."""
    largest_diameter = 48.0 if len(points) <= _FEW else max(30.0, 64.0 * math.sqrt(8 / len(points)))
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
    # The axis must not exceed 100 %, or go below 0 unless the metric can be negative.
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
    texts = [axes.text(0, 0, p.label, fontsize=10, color="#111111", transform=None) for p in points]
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
        text.set(position=(x, y), ha="center", va="center", path_effects=halo)
        if box.distance_to(disk.x, disk.y) > disk.radius + 6 * per_point:
            _draw_leader(axes, disk, box, point.colour)


def _error_bars(axes: Axes, point: _Point) -> list[Box]:
    """Return the boxes of the two error bars of a disk, with caps, in pixels."""
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
    """Draw a thin line from a distant label to the center of its disk."""
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
    """Draw three disks of round sizes at the scale of the plot."""
    axes.axis("off")
    axes.set_title("disk area =\npeak\nmemory of\na training\nstep", fontsize=9, loc="center")
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
        axes.text(0, top - diameter - 14, label, ha="center", va="center", fontsize=9)
        top -= diameter + 34


def _round_sizes(largest: int) -> list[tuple[float, str]]:
    """Return bytes and labels: the largest fitting 1, 2 or 5 x 10^n, a fourth and a twentieth."""
    exponent = int(math.log(max(largest, 1), 1024))
    unit, name = 1024**exponent, ("B", "KiB", "MiB", "GiB", "TiB")[exponent]
    power = 10 ** math.floor(math.log10(largest / unit))
    lead = max(step for step in (1, 2, 5) if step * power * unit <= largest)
    return [(value * unit, f"{value:g} {name}") for value in (lead * power / d for d in (1, 4, 20))]
