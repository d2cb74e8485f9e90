"""Plots of time against N or C, and of measured swaps."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, StrMethodFormatter

from rifflemix.lab.bench.layers import BASELINE, FLOOR
from rifflemix.lab.bench.rows import AXES, PEER, Key, shown_name
from rifflemix.lab.bench.tables import PASS_TITLES, axis_of, crossover_text, key_of, machine
from rifflemix.lab.report.page import figure_png

# Okabe and Ito's palette without its yellow, safe for the common kinds of color blindness. Further
# layers get darker and lighter shades with other markers, and every curve has a label.
_HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_SHADES = ((0.0, "o"), (-0.4, "s"), (0.3, "^"), (-0.65, "D"), (0.5, "v"))
_SOFTMAX_COLOUR, _FLOOR_COLOUR = "#222222", "#999999"
_DPI = 120
_LABEL_POINTS, _LABEL_GAP = 7.5, 10.0  # font size, and minimum distance of two labels, in points
# Inches: axis scale, frame and labels of a panel; then the margins at the top and the bottom.
_SCALE, _FRAME, _LABELS, _TOP, _BOTTOM = 0.9, 3.5, 3.05, 0.75, 0.95


@dataclass(frozen=True)
class _Curve:
    key: Key
    name: str
    colour: str
    marker: str
    points: list[tuple[int, float]]
    crossover: Mapping[str, Any] | None


def scaling_plot(result: Mapping[str, Any]) -> bytes:
    """Plot milliseconds against N or C as a PNG.

    There is one panel per pass, with logarithmic axes. A ring on the curve of softmax marks the
    point from which a layer is faster for good. The label of the layer's curve contains the same
    number.
    """
    passes = list(dict.fromkeys(entry["pass"] for entry in result["growth"]))
    keys = {key_of(row) for row in result["rows"]}
    with matplotlib.style.context("default"):
        width = len(passes) * (_SCALE + _FRAME + _LABELS)
        height = _TOP + _BOTTOM + max(4.2, 1.2 * _LABEL_GAP / 72 * len(keys))
        figure = Figure(figsize=(width, height), dpi=_DPI)
        FigureCanvasAgg(figure)  # measures the text extents
        _write_captions(figure, result)
        for i, name in enumerate(passes):
            left = i * (_SCALE + _FRAME + _LABELS) + _SCALE
            box = (left / width, _BOTTOM / height, _FRAME / width, 1 - (_TOP + _BOTTOM) / height)
            _draw_panel(figure.add_axes(box), name, _curves(result, name), axis_of(result))
        return figure_png(figure)


def _write_captions(figure: Figure, result: Mapping[str, Any]) -> None:
    width, height = figure.get_size_inches()
    settings, axis = result["settings"], axis_of(result)
    layer = "One causal layer" if settings.get("causal") else "One layer"
    fixed = f"C = {settings['dim']}" if axis == "tokens" else f"N = {settings['tokens'][0]}"
    title = (
        f"{layer} at B = {settings['batch']}, {fixed}, "
        f"{settings['heads']} heads, {settings['dtype']}: {machine(result)}"
    )
    has_rings = any(_is_crossed(entry["crossover"]) for entry in result["growth"])
    legend = (
        f"{'ring and ' if has_rings else ''}number in brackets: the layer is faster than softmax "
        f"from this {AXES[axis]} on"
    )
    if any(row["kind"] == PEER for row in result["rows"]):
        legend += ";  dashed: layers of other packages"
    left = 0.15 / width
    figure.text(left, 1 - 0.3 / height, title, fontsize=11, va="center")
    figure.text(left, 0.2 / height, legend, fontsize=8.5, va="center", color="#444444")


def _curves(result: Mapping[str, Any], pass_name: str) -> list[_Curve]:
    crossovers = {key_of(e): e["crossover"] for e in result["growth"] if e["pass"] == pass_name}
    names = {key_of(row): shown_name(row) for row in result["rows"]}
    looks = _looks(list(names))
    return [
        _Curve(key, name, *looks[key], points, crossovers[key])
        for key, name in names.items()
        if (points := _points(result["rows"], key, pass_name, axis_of(result)))
    ]


def _points(
    rows: Sequence[Mapping[str, Any]], key: Key, pass_name: str, axis: str
) -> list[tuple[int, float]]:
    return sorted(
        (row["shape"][axis], 1e3 * row["passes"][pass_name]["p50"])
        for row in rows
        if key_of(row) == key and pass_name in row["passes"]
    )


def _looks(keys: Sequence[Key]) -> dict[Key, tuple[str, str]]:
    """Assign a color and a marker to each curve.

    They depend only on the keys, not on the measured values.
    """
    looks = {BASELINE: (_SOFTMAX_COLOUR, "o"), FLOOR: (_FLOOR_COLOUR, "")}
    others = [key for key in keys if key not in looks]
    for i, key in enumerate(others):
        shift, marker = _SHADES[i // len(_HUES) % len(_SHADES)]
        looks[key] = (_shade(_HUES[i % len(_HUES)], shift), marker)
    return looks


def _shade(colour: str, shift: float) -> str:
    """Mix a color with black (shift below 0) or white."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    room = lightness if shift < 0 else 1 - lightness
    rgb = colorsys.hls_to_rgb(hue, lightness + shift * room, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def _draw_panel(axes: Axes, pass_name: str, curves: Sequence[_Curve], axis: str) -> None:
    label = f"{axis} {AXES[axis]}"
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="milliseconds")
    axes.set_title(PASS_TITLES[pass_name], loc="left", fontsize=10)
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if not curves:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center")
        return
    for curve in curves:
        _draw_curve(axes, curve)
    softmax = next((curve.points for curve in curves if curve.key == BASELINE), [])
    for curve in curves:
        _draw_crossover(axes, curve, softmax)
    tokens = sorted({n for curve in curves for n, _ in curve.points})
    _set_tokens(axes, tokens)
    _draw_labels(axes, curves)


def _draw_curve(axes: Axes, curve: _Curve) -> None:
    thick = curve.key in (BASELINE, FLOOR)
    axes.plot(
        *zip(*curve.points, strict=True),
        color=curve.colour,
        marker=curve.marker,
        markersize=4,
        linewidth=2.4 if thick else 1.3,
        linestyle=":" if curve.key == FLOOR else "--" if curve.key[0] == PEER else "-",
        zorder=4 if thick else 3,
    )


def _draw_crossover(axes: Axes, curve: _Curve, softmax: Sequence[tuple[int, float]]) -> None:
    found = curve.crossover
    if found is None or not _is_crossed(found):
        return
    axes.plot(
        found["tokens"],
        _interpolate(softmax, found["tokens"]),
        marker="o",
        markersize=9,
        markerfacecolor="white",
        markeredgecolor=curve.colour,
        markeredgewidth=2.0,
        zorder=6,
    )


def _is_crossed(crossover: Mapping[str, Any] | None) -> bool:
    """Check whether the layer becomes faster than softmax within the range."""
    return crossover is not None and crossover["tokens"] is not None and not crossover["always"]


def _interpolate(points: Sequence[tuple[int, float]], tokens: float) -> float:
    """Interpolate between two neighbors on logarithmic scales."""
    i = max(k for k, (n, _) in enumerate(points[:-1]) if n <= tokens)
    (n0, t0), (n1, t1) = points[i], points[i + 1]
    return float(t0 * (t1 / t0) ** (math.log(tokens / n0) / math.log(n1 / n0)))


def _set_tokens(axes: Axes, tokens: Sequence[int]) -> None:
    """Set ticks at the measured points."""
    axes.xaxis.set_major_locator(FixedLocator(tokens))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="x", labelsize=8, rotation=45 if len(tokens) > 7 else 0)
    margin = (tokens[-1] / tokens[0]) ** 0.04 if len(tokens) > 1 else 2.0
    axes.set_xlim(tokens[0] / margin, tokens[-1] * margin)


def _draw_labels(axes: Axes, curves: Sequence[_Curve]) -> None:
    """Write names to the right of the frame, sorted by last value."""
    dpi = axes.figure.dpi
    frame = axes.get_window_extent()
    ordered = sorted(curves, key=lambda curve: curve.points[-1][1])
    ends = [axes.transData.transform(curve.points[-1]) for curve in ordered]
    heights = spread([y for _, y in ends], _LABEL_GAP * dpi / 72, frame.y0, frame.y1)
    for curve, (x, y), height in zip(ordered, ends, heights, strict=True):
        axes.annotate(
            _label(curve),
            xy=(x, y),
            xytext=(frame.x1 + 0.2 * dpi, height),
            xycoords="figure pixels",
            textcoords="figure pixels",
            va="center",
            fontsize=_LABEL_POINTS,
            color="#111111",
            arrowprops={
                "arrowstyle": "-",
                "color": curve.colour,
                "linewidth": 0.9,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 3,
            },
            annotation_clip=False,
        )


def _label(curve: _Curve) -> str:
    if curve.crossover is None:
        return curve.name
    text = crossover_text(curve.crossover)
    return f"{curve.name} ({text if curve.crossover['tokens'] is None else f'from {text}'})"


def spread(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move rising heights apart to at least `gap`, within low and high.

    Each height moves as little as needed. If there is too little room for the gap, the heights are
    spaced evenly.
    """
    count = len(heights)
    gap = min(gap, (high - low) / max(count - 1, 1))
    blocks: list[tuple[float, int]] = []  # mean of the preferred starts, number of members
    for i, height in enumerate(heights):
        start, members = min(max(height - i * gap, low), high - (count - 1) * gap), 1
        while blocks and blocks[-1][0] > start:
            before, others = blocks.pop()
            start = (start * members + before * others) / (members + others)
            members += others
        blocks.append((start, members))
    starts = [start for start, members in blocks for _ in range(members)]
    return [start + i * gap for i, start in enumerate(starts)]


_MARKERS = "osD^v"


def swap_plot(seconds: Mapping[str, Mapping[str, Mapping[int, float]]]) -> bytes:
    """Plot milliseconds against N as a PNG, one panel per phase.

    The first mixer, the original attention, is black.

    Args:
        seconds: phase -> mixer -> N -> seconds.
    """
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(4.6 * len(seconds) + 1.6, 4.0), dpi=120, layout="constrained")
        panels = figure.subplots(1, len(seconds), squeeze=False)[0]
        for panel, (phase, by_mixer) in zip(panels, seconds.items(), strict=True):
            for i, (mixer, costs) in enumerate(by_mixer.items()):
                panel.loglog(
                    list(costs),
                    [1e3 * cost for cost in costs.values()],
                    color="#222222" if i == 0 else _HUES[(i - 1) % len(_HUES)],
                    marker=_MARKERS[i // len(_HUES) % len(_MARKERS)],
                    linewidth=2.0 if i == 0 else 1.4,
                    label=mixer,
                )
            panel.set(title=phase, xlabel="tokens N", ylabel="milliseconds")
            panel.xaxis.set_major_locator(
                FixedLocator(sorted({n for costs in by_mixer.values() for n in costs}))
            )
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            panel.grid(True, which="major", alpha=0.3)
        handles, labels = panel.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False)
        return figure_png(figure)
