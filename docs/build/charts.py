"""Charts as SVG with a light and a dark form: rows of dots, curves, points.

Colors are from Okabe and Ito, and every color comes with a shape or a word.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import fill
from xml.sax.saxutils import quoteattr

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

PAPER, INK, GRID, GRAY = "#ffffff", "#222222", "#e4e4e4", "#666666"
PANEL, CELL, FAINT = "#f6f8fa", "#dde3ea", "#c3cad2"
BLUE, ORANGE, PINK, SILVER = "#0072b2", "#b05000", "#cc79a7", "#bdbdbd"
MIXER_COLORS = {
    "softmax": INK,
    "csp": BLUE,
    "sliceformer": "#d55e00",
    "tssa": "#009e73",
    "butterfly": PINK,
    "token_parallel": "#3a8fc4",
    "sinkhorn": "#b07800",
}
"""One color per mixer in all pictures; other mixers are gray and dashed."""
DARK = {
    PAPER: "#1e2129",
    INK: "#e6e6e6",
    GRID: "#3a3f4b",
    GRAY: "#aaaaaa",
    PANEL: "#161b22",
    CELL: "#d0d7de",
    FAINT: "#3d444d",
    BLUE: "#56b4e9",
    ORANGE: "#ff9d57",
    "#d55e00": "#ff8c42",
    "#009e73": "#3fd0a4",
    PINK: "#e8a3cb",
    "#b07800": "#e69f00",
    "#3a8fc4": "#9fd4f5",
}
"""Color of the light form -> color of the dark form."""
_WIDTH, _LINE, _LETTERS = 5.0, 0.2, 52  # inches, inches, letters per line of a title
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rifflemix",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
}


@dataclass(frozen=True)
class Mark:
    """One value of a row: "main" is a filled circle, "other" a ring; a bar shows the range."""

    value: float
    kind: str = "main"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """A name, its marks, and words at the end of the line; a row without marks is a heading."""

    name: str
    marks: tuple[Mark, ...] = ()
    words: str = ""


@dataclass(frozen=True)
class Curve:
    """A mixer and its points (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]
    label: str = ""
    """Text at the end of the curve, instead of the name."""
    is_dashed: bool = False


@mpl.rc_context(STYLE)
def dots(title: str, rows: Sequence[Row], rule: float | None = None, inner: float = 2.2) -> str:
    """Draw rows of marks over a scale of `inner` inches, with a dashed line at `rule`."""
    figure, axes = _figure(0.7 + _LINE * len(rows), inner)
    axes.grid(axis="x")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.tick_params(left=False, bottom=False)
    if rule is not None:
        axes.axvline(rule, color=GRAY, linestyle="--", linewidth=1)
    for y, (row, label) in enumerate(zip(rows, axes.get_yticklabels(), strict=True)):
        label.set_fontweight("normal" if row.marks else "bold")
        for mark in row.marks:
            color, face = (BLUE, BLUE) if mark.kind == "main" else (ORANGE, PAPER)
            if mark.low is not None and mark.high is not None:
                axes.plot([mark.low, mark.high], [y, y], color=color, linewidth=1.5)
            axes.plot(mark.value, y, "o", color=color, markerfacecolor=face, markersize=6, zorder=3)
        axes.annotate(row.words, (1, y), (8, 0), ("axes fraction", "data"), "offset points",
                      va="center")  # fmt: skip
    texts = (f"{row.name}: {row.words}" for row in rows if row.marks)
    return _titled(figure, title, texts)


@mpl.rc_context(STYLE)
def curves(title: str, drawn: Sequence[Curve], *, decades: bool = False) -> str:
    """Draw curves over a logarithmic scale, each with its name at its end.

    The vertical scale is logarithmic with `decades`. Otherwise it starts at 0.
    """
    figure, axes = _figure(3.2, 3.7)
    axes.set_xscale("log", base=2)
    values = sorted({x for curve in drawn for x, _ in curve.points})
    if decades:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
    _draw(axes, drawn, values)
    if not decades:
        axes.set_ylim(0, None)
    axes.set_xlim(values[0], values[-1])
    texts = (f"{c.name}: {c.points[0][1]:.3g} to {c.points[-1][1]:.3g}" for c in drawn)
    return _titled(figure, title, texts)


def _draw(axes: Axes, drawn: Sequence[Curve], ticks: Sequence[float]) -> None:
    """Draw curves in the colors of their mixers, with labels at the right edge."""
    axes.set_xticks(ticks, [f"{x:,g}" for x in ticks])
    axes.minorticks_off()
    axes.grid(axis="y")
    colors = [MIXER_COLORS.get(curve.name, GRAY) for curve in drawn]
    for curve, color in zip(drawn, colors, strict=True):
        is_dashed = curve.is_dashed or curve.name not in MIXER_COLORS
        style = "--" if is_dashed else "-"
        axes.plot(*zip(*curve.points, strict=True), style, color=color, linewidth=1.8)
    labeled = [(c, color) for c, color in zip(drawn, colors, strict=True) if not c.is_dashed]
    ends = [(curve.label or curve.name, *curve.points[-1]) for curve, _ in labeled]
    _label(axes, ends, [color for _, color in labeled])


@mpl.rc_context(STYLE)
def panels(
    title: str, drawn: Mapping[str, Sequence[Curve]], x_label: str, at: float | None = None
) -> str:
    """Draw one panel of curves per heading, over a logarithmic vertical scale.

    With `at`, the horizontal scale is logarithmic, too, with a line at x = `at`. Otherwise the
    panels share the vertical scale.
    """
    figure = Figure((5.0, 3.1))
    figure.subplots_adjust(0.08, 0.13, 0.82, 0.88, wspace=1.05)
    for axes, (heading, found) in zip(
        figure.subplots(1, len(drawn), squeeze=False, sharey=at is None)[0],
        drawn.items(),
        strict=True,
    ):
        axes.set_title(heading, x=-0.3, loc="left", fontweight="bold", size=10)
        axes.set_yscale("log")
        values = sorted({x for curve in found for x, _ in curve.points})
        if at is not None:
            axes.set_xscale("log", base=2)
            gap = 2 if len(values) < 5 else 4  # doublings; labels of more lengths would touch
            values = [x for x in values if math.log2(x / at) % gap == 0]
            axes.axvline(at, color=GRAY, linestyle=":", linewidth=1)
        else:
            values = [values[0], values[len(values) // 2], values[-1]]
        axes.spines[:].set_visible(False)
        axes.set_axisbelow(True)
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel(x_label)
        _draw(axes, found, values)
    labels = (f"{heading}: {c.label}" for heading, found in drawn.items() for c in found)
    return _titled(figure, title, [label.replace("\n", " ") for label in labels])


@mpl.rc_context(STYLE)
def heat(
    title: str, columns: Sequence[str], rows: Mapping[str, Sequence[tuple[float, str]]]
) -> str:
    """Draw a cell for each (share from 0 to 1, words); a darker cell has a larger share."""
    figure, axes = _figure(0.7 + 0.24 * len(rows), 0.95 * len(columns))
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for y, cells in enumerate(rows.values()):
        for x, (share, words) in enumerate(cells):
            box = Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, color=BLUE, alpha=0.55 * share)
            axes.add_patch(box)
            axes.text(x, y, words, ha="center", va="center")
    texts = (
        f"{name}: {', '.join(f'{c} {words}' for c, (_, words) in zip(columns, cells, strict=True))}"
        for name, cells in rows.items()
    )
    return _titled(figure, title, texts)


@mpl.rc_context(STYLE)
def scatter(
    title: str,
    points: Sequence[tuple[str, float, float]],
    x_label: str,
    y_label: str,
    *,
    decades: bool = False,
) -> str:
    """Draw a point (name, x, y) for each mixer.

    A name is the mixer, or the mixer, a comma and other words.
    The scales start at 0, but the horizontal scale is logarithmic with `decades`.
    """
    figure, axes = _figure(3.0, 3.8)
    axes.grid()
    across = [x for _, x, _ in points]
    low, most = min(across), max(across)
    highest = max(y for *_, y in points)
    limits = (low / 1.5, most * 1.5) if decades else (0, 1.1 * most)
    middle = math.sqrt(low * most) if decades else most / 2
    axes.set(xscale="log" if decades else "linear", xlim=limits, ylim=(0, 1.1 * highest),
             xlabel=x_label, ylabel=y_label)  # fmt: skip
    if decades:
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()
    for is_right in (False, True):
        half = [point for point in points if (point[1] > middle) == is_right]
        colors = [MIXER_COLORS.get(name.partition(",")[0], GRAY) for name, *_ in half]
        for (_, x, y), color in zip(half, colors, strict=True):
            axes.plot(x, y, "o", color=color, markersize=9)
        if is_right:
            _label(axes, half, colors)
        else:
            _label_next_to(axes, half, colors, points)
    texts = (f"{name}: {x:.1f}, {y:.1f}" for name, x, y in points)
    return _titled(figure, title, [f"{x_label}, {y_label}", *texts])


def _titled(figure: Figure, title: str, texts: Iterable[str]) -> str:
    """Return a figure as SVG, with a title above everything else; both are the alternative."""
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    figure.text(box.x0 / width, (box.y1 + 0.12) / height, fill(title, _LETTERS),
                fontweight="bold")  # fmt: skip
    return svg(figure, f"{title}. {'; '.join(texts)}.", 1.2)


def _figure(height: float, inner: float) -> tuple[Figure, Axes]:
    """Make a figure with one panel that is `inner` inches wide, without its labels."""
    figure = Figure((_WIDTH, height))
    axes = figure.subplots()
    figure.subplots_adjust(0, 0.35 / height, inner / _WIDTH, 1 - 0.35 / height)
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def _label_next_to(
    axes: Axes,
    points: Sequence[tuple[str, float, float]],
    colors: Iterable[str],
    others: Sequence[tuple[str, float, float]],
) -> None:
    """Write names on the side of their points with the fewest overlaps."""
    axes.figure.draw_without_rendering()
    scale = 72 / axes.figure.dpi

    def at(found: Sequence[tuple[str, float, float]]) -> list[tuple[float, float]]:
        return [
            (scale * x, scale * y) for x, y in axes.transData.transform([of[1:] for of in found])
        ]

    taken = [(x - 5, x + 5, y - 5, y + 5) for x, y in at(others)]
    left = scale * axes.transAxes.transform((0, 0))[0]
    for (name, x, y), (across, up), color in zip(points, at(points), colors, strict=True):
        width = 6.2 * len(name)
        boxes = {}
        for shift, rise in ((8, 0), (-8 - width, 0), (-width / 2, 12), (-width / 2, -12)):
            start = across + shift
            box = (start, start + width, up + rise - 5.5, up + rise + 5.5)
            hits = [a for a in taken if a[0] < box[1] and box[0] < a[1]
                    and a[2] < box[3] and box[2] < a[3]]  # fmt: skip
            boxes[shift, rise] = len(hits) + (start < left), box
        (shift, rise), (_, box) = min(boxes.items(), key=lambda entry: entry[1][0])
        taken.append(box)
        axes.annotate(name, (x, y), (shift, rise), textcoords="offset points", color=color,
                      va="center")  # fmt: skip


def _label(axes: Axes, points: Sequence[tuple[str, float, float]], colors: Iterable[str]) -> None:
    """Write names at the right edge, without overlaps, with lines to their points."""
    axes.figure.draw_without_rendering()
    pixel = axes.transData.transform([(x, y) for _, x, y in points])
    scale = 72 / axes.figure.dpi
    lines = max(name.count("\n") + 1 for name, *_ in points) if points else 1
    heights = apart({name: float(y) * scale for (name, *_), (_, y) in zip(points, pixel,
                                                                        strict=True)},
                    gap=12.0 * lines + 1)  # fmt: skip
    edge = axes.transAxes.transform((1, 0))[0]
    for (name, x, y), (across, up), color in zip(points, pixel, colors, strict=True):
        offset = (scale * float(edge - across) + 12, heights[name] - up * scale)
        line = {"arrowstyle": "-", "color": SILVER, "linewidth": 0.6, "shrinkB": 3}
        axes.annotate(name, (x, y), offset, textcoords="offset points", color=color,
                      va="center", arrowprops=line)  # fmt: skip


def apart(wanted: Mapping[str, float], gap: float = 11.0) -> dict[str, float]:
    """Move heights of labels as little as possible, until neighbors are `gap` apart."""
    names = sorted(wanted, key=wanted.__getitem__)
    placed = {name: wanted[name] for name in names}
    for _ in range(200):
        for below, above in pairwise(names):
            missing = gap - (placed[above] - placed[below])
            if missing > 1e-6:
                placed[below] -= missing / 2
                placed[above] += missing / 2
    return placed


def svg(figure: Figure, alt: str, scale: float = 1.0) -> str:
    """Return a figure as SVG with a dark form and a text alternative.

    Args:
        figure: the figure.
        alt: text alternative.
        scale: factor of the width and height on the page.
    """
    text = io.StringIO()
    figure.savefig(
        text,
        format="svg",
        bbox_inches="tight",
        metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
    )
    rules = "".join(
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important; }}\n'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n"
    attributes, _, rest = text.getvalue().partition("<svg ")[2].partition(">")
    attributes = re.sub(
        r'="([\d.]+)pt"', lambda size: f'="{scale * float(size[1]):.0f}pt"', attributes
    )
    rest = re.sub(r"<!--.*?-->|\n\s+", "", rest)
    # Round coordinates, but no text between tags.
    rest = re.sub(r"(>[^<]*)|\d+\.\d{3,}", lambda found: found[1] or f"{float(found[0]):.2f}", rest)
    return f'<svg {attributes} role="img" aria-label={quoteattr(alt)}>\n{style}{rest}'
