"""The kinds of pictures of docs/results.md, as SVG: dots in rows, curves, and verdicts.

Each has its own ground, light or dark as the reader's system. Colours are Okabe and Ito's, and a
word or a shape says what a colour says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

_KEY_COLUMNS = 3
_WIDTH, _NAMES, _WORDS, _LINE, _HEAD, _FOOT = 780, 230, 170, 19, 34, 40


@dataclass(frozen=True)
class Mark:
    """One value of a row: "main" a disk, "other" a ring; between `low` and `high` a bar."""

    value: float
    kind: str = "main"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """A name, its marks, and words at the end of the line; without marks it is a heading."""

    name: str
    marks: tuple[Mark, ...] = ()
    words: str = ""


@dataclass(frozen=True)
class Curve:
    """A name and its points, (across, up)."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Point:
    """A name at (across, up), and how far up and down the value may be off."""

    name: str
    across: float
    up: float
    error: float


def dots(title: str, rows: Sequence[Row], rule: float | None = None) -> str:
    """Rows of marks over one scale; `rule` is where a line goes down through all."""
    values = [v for row in rows for m in row.marks for v in (m.value, m.low, m.high)
              if v is not None]  # fmt: skip
    ticks = _ticks(*_span([*values, *([] if rule is None else [rule])]))
    left = max(_NAMES, 8 + _room([row.name for row in rows if row.marks]))
    right = _WIDTH - max(_WORDS, 20 + _room([row.words for row in rows]))
    across = _scale(ticks[0], ticks[-1], left, right)
    bottom = _HEAD + _LINE * len(rows)
    parts = [_text(left, 18, title, "title")]
    for tick in ticks:
        parts.append(_line(across(tick), _HEAD - 4, across(tick), bottom, "grid"))
        parts.append(_text(across(tick), bottom + 16, f"{tick:g}", "small middle"))
    if rule is not None:
        parts.append(_line(across(rule), _HEAD - 4, across(rule), bottom, "rule"))
    for number, row in enumerate(rows):
        y = _HEAD + _LINE * (number + 0.5)
        kind = "" if row.marks else "heading"
        parts.append(_text(8, y + 4, row.name, kind))
        parts += [_mark(mark, across, y) for mark in row.marks]
        parts.append(_text(right + 12, y + 4, row.words, "small"))
    said = "; ".join(f"{row.name}: {row.words}" for row in rows if row.marks)
    return _sheet(f"{title}. {said}.", bottom + _FOOT, parts)


def curves(
    title: str, drawn: Sequence[Curve], rule: float | None = None, *, decades: bool = False
) -> str:
    """Curves over a logarithmic scale, each with its name at its end; past seven they are dashed.

    With `decades` the other scale is logarithmic as well, else it starts at 0.
    """
    across_values = sorted({x for curve in drawn for x, _ in curve.points})
    ups = [y for curve in drawn for _, y in curve.points]
    ticks = _decades(min(ups), max(ups)) if decades else _ticks(0.0, max(ups))
    left, right, top, bottom = 60, _WIDTH - _WORDS, _HEAD, 340
    first, last = math.log2(across_values[0]), math.log2(across_values[-1])
    across = _scale(first, last, left, right)
    level = math.log10 if decades else float
    height = _scale(level(ticks[0]), level(ticks[-1]), bottom, top)

    def up(value: float) -> float:
        return height(level(value))

    parts = [_text(left, 18, title, "title")]
    for tick in ticks:
        parts.append(_line(left, up(tick), right, up(tick), "grid"))
        parts.append(_text(left - 8, up(tick) + 4, f"{tick:,g}", "small end"))
    parts += [
        _text(across(math.log2(x)), bottom + 16, f"{x:,g}", "small middle") for x in across_values
    ]
    if rule is not None:
        parts.append(_line(left, up(rule), right, up(rule), "rule"))
    ends = _apart({curve.name: up(curve.points[-1][1]) for curve in drawn})
    for number, curve in enumerate(drawn):
        colour = f"c{number % 7}"
        points = " ".join(f"{across(math.log2(x)):.1f},{up(y):.1f}" for x, y in curve.points)
        again = " again" * (number >= 7)
        parts.append(f'<polyline class="curve {colour}{again}" points="{points}"/>')
        x, y = across(math.log2(curve.points[-1][0])), up(curve.points[-1][1])
        parts.append(_line(x + 2, y, right + 10, ends[curve.name], "leader"))
        name = f"{curve.name} (dashed)" if again else curve.name
        parts.append(_text(right + 14, ends[curve.name] + 4, name, f"small t{number % 7}"))
    said = "; ".join(f"{c.name}: {c.points[0][1]:.3g} to {c.points[-1][1]:.3g}" for c in drawn)
    return _sheet(f"{title}. {said}.", bottom + _FOOT, parts)


def scatter(title: str, drawn: Mapping[str, Sequence[Point]]) -> str:
    """A panel of named points for each heading, over one scale across and one up."""
    points = [point for panel in drawn.values() for point in panel]
    levels = _ticks(*_span([v for p in points for v in (p.up - p.error, p.up + p.error)]))
    ticks = _ticks(0.0, max(point.across for point in points))
    gap, top, bottom = 60, _HEAD + 22, 320
    width = (_WIDTH - gap) / len(drawn) - gap
    up = _scale(levels[0], levels[-1], bottom, top)
    parts = [_text(gap, 18, title, "title")]
    for number, (heading, panel) in enumerate(drawn.items()):
        left = gap + number * (width + gap)
        across = _scale(ticks[0], ticks[-1], left, left + width)
        parts.append(_text(left, _HEAD + 8, heading, "heading"))
        for level in levels:
            parts.append(_line(left, up(level), left + width, up(level), "grid"))
            parts.append(_text(left - 8, up(level) + 4, f"{level:g}", "small end"))
        parts += [_text(across(tick), bottom + 16, f"{tick:g}", "small middle") for tick in ticks]
        names = _apart({point.name: up(point.up) for point in panel})
        labels = []  # over all bars, each on a ground of its own
        for point in panel:
            x, y = across(point.across), up(point.up)
            parts.append(
                _line(x, up(point.up - point.error), x, up(point.up + point.error), "bar main")
            )
            parts.append(_line(x, y, x + 8, names[point.name], "leader"))
            parts.append(f'<circle class="main" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
            at = (x + 9, names[point.name] + 4, point.name)
            labels += [_text(*at, "small halo"), _text(*at, "small")]
        parts += labels
    said = "; ".join(
        f"{heading}, {p.name}: {p.up:.3g} at {p.across:.3g}"
        for heading, of in drawn.items()
        for p in of
    )
    return _sheet(f"{title}. {said}.", bottom + _FOOT, parts)


_OTHER_VERDICTS = """<style>
rect.v3 { fill: #cc79a7; } text.v3 { fill: #222222; }
rect.v4 { fill: #bdbdbd; } text.v4 { fill: #222222; }
rect.v5 { fill: none; stroke: #8a8a8a; stroke-dasharray: 3 2; }
</style>"""


def verdicts(
    title: str, judged: Mapping[str, Sequence[tuple[int, str]]], kinds: Sequence[str]
) -> str:
    """Draw a row of numbered squares for each name, and a key of the verdicts `kinds`."""
    parts = [_OTHER_VERDICTS, _text(_NAMES + 30, 18, title, "title")]
    for row, (name, of) in enumerate(judged.items()):
        y = _HEAD + 30 * row
        parts.append(_text(8, y + 17, name))
        for place, (number, verdict) in enumerate(of):
            x = _NAMES + 30 + 30 * place
            kind = f"v{kinds.index(verdict)}"
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="26" height="26" rx="3"/>')
            parts.append(_text(x + 13, y + 17, number, f"small middle {kind}"))
    y = _HEAD + 30 * len(judged) + 8
    for place, verdict in enumerate(kinds):
        x = _NAMES + 30 + 170 * (place % _KEY_COLUMNS)
        if place and not place % _KEY_COLUMNS:
            y += 20
        parts.append(f'<rect class="v{place}" x="{x}" y="{y}" width="14" height="14" rx="2"/>')
        parts.append(_text(x + 20, y + 11, verdict, "small"))
    said = "; ".join(
        f"{name}: " + ", ".join(f"{number} {verdict}" for number, verdict in of)
        for name, of in judged.items()
    )
    return _sheet(f"{title}. {said}.", y + 26, parts)


def _mark(mark: Mark, across: Callable[[float], float], y: float) -> str:
    bar = ""
    if mark.low is not None and mark.high is not None:
        bar = _line(across(mark.low), y, across(mark.high), y, f"bar {mark.kind}")
    return f'{bar}<circle class="{mark.kind}" cx="{across(mark.value):.1f}" cy="{y:g}" r="4.5"/>'


def _room(texts: Sequence[str]) -> float:
    """Pixels that the longest of the texts takes, in a wide font."""
    return 6.5 * max(map(len, texts))


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return low, high if high > low else low + 1.0


def _ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers from below `low` to above `high`."""
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(s * power for s in (0.1, 0.2, 0.5, 1.0, 2.0) if (high - low) / (s * power) <= 7)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten from below the values to above them."""
    return [
        10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _apart(wanted: Mapping[str, float], gap: float = 15.0) -> dict[str, float]:
    """Heights of labels as near as can be to those wanted, none within `gap` of another."""
    names = sorted(wanted, key=wanted.__getitem__)
    placed = {name: wanted[name] for name in names}
    for _ in range(200):
        for above, below in pairwise(names):
            missing = gap - (placed[below] - placed[above])
            if missing > 1e-6:
                placed[above] -= missing / 2
                placed[below] += missing / 2
    return placed


def _text(x: float, y: float, words: object, kind: str = "") -> str:
    if not str(words):
        return ""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}">{escape(str(words))}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _sheet(alt: str, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(part for part in parts if part)
    return _SHEET.format(width=_WIDTH, height=round(height), alt=quoteattr(alt), body=body)


_CURVES = ("222222", "0072b2", "d55e00", "009e73", "cc79a7", "b07800", "3a8fc4")
_DARK_CURVES = ("eeeeee", "56b4e9", "ff8c42", "3fd0a4", "e8a3cb", "e69f00", "9fd4f5")


def _coloured(colours: Sequence[str]) -> str:
    return "\n".join(
        f" .c{n} {{{{ stroke: #{colour}; }}}} .t{n} {{{{ fill: #{colour}; }}}}"
        for n, colour in enumerate(colours)
    )


_SHEET = (
    """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
 width="{width}" height="{height}" aria-label={alt}>
<style>
 .ground {{ fill: #ffffff; }}
 text {{ font: 12px sans-serif; fill: #222; }}
 .title, .heading {{ font-weight: bold; }}
 .small {{ font-size: 11px; }}
 .halo {{ stroke: #ffffff; stroke-width: 4; stroke-linejoin: round; }}
 .middle {{ text-anchor: middle; }}
 .end {{ text-anchor: end; }}
 .grid {{ stroke: #e4e4e4; }}
 .rule {{ stroke: #666; stroke-dasharray: 4 3; }}
 .leader {{ stroke: #999; stroke-width: 0.6; }}
 .bar {{ stroke-width: 2; }}
 .curve {{ fill: none; stroke-width: 2; }}
 .again {{ stroke-dasharray: 6 3; }}
 line.main {{ stroke: #0072b2; }}
 circle.main {{ fill: #0072b2; }}
 line.other {{ stroke: #b05000; }}
 circle.other {{ fill: #ffffff; stroke: #b05000; stroke-width: 2; }}
 rect.v0 {{ fill: #0072b2; }} text.v0 {{ fill: #ffffff; }}
 rect.v1 {{ fill: #ffffff; stroke: #b05000; stroke-width: 2; }}
 rect.v2 {{ fill: #f0c04a; }} text.v2 {{ fill: #222222; }}
"""
    + _coloured(_CURVES)
    + """
 @media (prefers-color-scheme: dark) {{
 .ground {{ fill: #1e2129; }}
 text {{ fill: #e6e6e6; }}
 .halo {{ stroke: #1e2129; }}
 .grid {{ stroke: #3a3f4b; }}
 .rule {{ stroke: #aaa; }}
 line.main {{ stroke: #56b4e9; }}
 circle.main {{ fill: #56b4e9; }}
 line.other {{ stroke: #ff9d57; }}
 circle.other {{ fill: #1e2129; stroke: #ff9d57; }}
 rect.v1 {{ fill: #1e2129; stroke: #ff9d57; }}
"""
    + _coloured(_DARK_CURVES)
    + """
 }}
</style>
<rect class="ground" width="{width}" height="{height}" rx="6"/>
{body}
</svg>
"""
)
