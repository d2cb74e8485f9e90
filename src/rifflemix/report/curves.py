"""Learning curves as inline SVG: one small panel a mixer, the others in grey behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from rifflemix.report.table import comparison_rows
from rifflemix.report.units import metric_value

_WIDTH, _HEIGHT = 240, 136
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 8, 10, 22

Curve = Sequence[tuple[float, float]]


def score_curves(results: Mapping[str, Any], metric: str) -> str:
    """HTML of the panels of a metric on the validation split, shares in percent, by step."""

    def curve(run: Mapping[str, Any]) -> Curve:
        return [(at["step"], metric_value(metric, at[metric])) for at in run["validation_curve"]]

    return _panels(results, curve)


def loss_curves(results: Mapping[str, Any]) -> str:
    """HTML of the panels of training loss against the step."""
    return _panels(results, lambda run: [(at["step"], at["loss"]) for at in run["train_curve"]])


def _panels(results: Mapping[str, Any], curve: Callable[[Mapping[str, Any]], Curve]) -> str:
    curves: dict[str, list[Curve]] = {}
    for run in results["runs"]:
        curves.setdefault(run["mixer"], []).append(curve(run))
    titles = {row.name: row.title for row in comparison_rows(results) if row.name in curves}
    return panels(titles, curves)


def panels(titles: Mapping[str, str], curves: Mapping[str, Sequence[Curve]]) -> str:
    """A panel for each name of `titles`: its curves, and all other curves in grey behind it."""
    scale = _Scale([line for lines in curves.values() for line in lines])
    drawn = [_panel(title, name, curves, scale) for name, title in titles.items()]
    return '<div class="panels">' + "".join(drawn) + "</div>"


class _Scale:
    """Data to panel coordinates, the same for all panels so that they compare."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        steps = [step for curve in curves for step, _ in curve] or [1.0]
        values = [value for curve in curves for _, value in curve] or [0.0]
        self.last_step = max(steps)
        self.low, self.high = min(values), max(values)

    def point(self, step: float, value: float) -> str:
        """SVG "x,y"."""
        return f"{self.x(step):.1f},{self.y(value):.1f}"

    def x(self, step: float) -> float:
        """Across: from step 0."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / max(self.last_step, 1.0)

    def y(self, value: float) -> float:
        """Up: from the lowest value of any curve to the highest."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share


def _panel(title: str, name: str, curves: Mapping[str, Sequence[Curve]], scale: _Scale) -> str:
    behind = [c for other, of_other in curves.items() if other != name for c in of_other]
    lines = [_line(curve, "other", scale) for curve in behind]
    lines += [_line(curve, "own", scale) for curve in curves[name]]
    ends = ", ".join(f"{curve[-1][1]:.3g}" for curve in curves[name] if curve)
    label = f"{title}: last value {ends or 'none'}"
    return (
        f"<div><p>{escape(title)}</p>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{_axes(scale)}{''.join(lines)}</svg></div>"
    )


def _line(curve: Curve, css_class: str, scale: _Scale) -> str:
    points = " ".join(scale.point(step, value) for step, value in curve)
    return f'<polyline class="{css_class}" points="{points}"/>'


def _axes(scale: _Scale) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    return (
        f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
        f'<text x="{_LEFT - 4}" y="{_TOP + 4}" text-anchor="end">{scale.high:.3g}</text>'
        f'<text x="{_LEFT - 4}" y="{bottom}" text-anchor="end">{scale.low:.3g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">0</text>'
        f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">step {scale.last_step:g}</text>'
    )
