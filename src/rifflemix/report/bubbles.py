"""Accuracy against speed, disk area by memory, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rifflemix.report.reproduction import decimals
from rifflemix.report.units import format_bytes, format_rate

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 26, 44
_LARGEST_RADIUS = 22.0


@dataclass(frozen=True)
class Bubble:
    """One row: what it is called, its steps per second, its value, its memory in bytes."""

    name: str
    speed: float
    value: float
    memory: float


def bubble_chart(title: str, unit: str, bubbles: Sequence[Bubble]) -> str:
    """SVG: further right is faster (logarithmic), further up a larger value, area is memory."""
    speeds = [math.log(bubble.speed) for bubble in bubbles]
    values = [bubble.value for bubble in bubbles]
    largest = max(bubble.memory for bubble in bubbles)
    parts = [_axes(title, unit, bubbles)]
    for number, bubble in enumerate(bubbles, 1):
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * _share(math.log(bubble.speed), speeds)
        y = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * _share(bubble.value, values)
        radius = _LARGEST_RADIUS * math.sqrt(bubble.memory / largest)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="var(--own)" '
            f'fill-opacity="0.35" stroke="var(--own)"><title>{escape(_told(bubble, unit))}</title>'
            f'</circle><text x="{x:.1f}" y="{y + 3:.1f}" text-anchor="middle">{number}</text>'
        )
    told = [_told(bubble, unit) for bubble in bubbles]
    names = "".join(f"<li>{escape(text)}</li>" for text in told)
    return (
        f'<figure class="bubbles"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: {escape("; ".join(told))}">{"".join(parts)}</svg>'
        f"<ol>{names}</ol><figcaption>Further right is faster, further up is a larger value; the "
        "area of a disk is its memory.</figcaption></figure>"
    )


def _told(bubble: Bubble, unit: str) -> str:
    value = f"{bubble.value:{decimals(unit, bubble.value)}} {unit}"
    speed, memory = format_rate(bubble.speed), format_bytes(bubble.memory)
    return f"{bubble.name}: {value}, {speed} steps/s, {memory}"


def _share(value: float, values: Sequence[float]) -> float:
    """Where a value lies between the least and the greatest, with room for disks at both ends."""
    low, high = min(values), max(values)
    inner = (value - low) / (high - low) if high > low else 0.5
    return 0.1 + 0.8 * inner


def _axes(title: str, unit: str, bubbles: Sequence[Bubble]) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    slowest = min(bubble.speed for bubble in bubbles)
    fastest = max(bubble.speed for bubble in bubbles)
    lowest = min(bubble.value for bubble in bubbles)
    highest = max(bubble.value for bubble in bubbles)
    low, high = (f"{value:{decimals(unit, value)}}" for value in (lowest, highest))
    span, rise = right - _LEFT, bottom - _TOP
    return (
        f'<polyline class="axis" points="{_LEFT},{_TOP} {_LEFT},{bottom} {right},{bottom}"/>'
        f'<text x="{_LEFT + 0.1 * span:.0f}" y="{bottom + 14}" text-anchor="middle">'
        f"{format_rate(slowest)}</text>"
        f'<text x="{_LEFT + 0.9 * span:.0f}" y="{bottom + 14}" text-anchor="middle">'
        f"{format_rate(fastest)}</text>"
        f'<text x="{_LEFT + span / 2:.0f}" y="{bottom + 32}" text-anchor="middle">steps/s</text>'
        f'<text x="{_LEFT - 6}" y="{bottom - 0.1 * rise + 3:.0f}" text-anchor="end">{low}'
        f'</text><text x="{_LEFT - 6}" y="{_TOP + 0.1 * rise + 3:.0f}" text-anchor="end">'
        f'{high}</text><text x="{_LEFT}" y="12" class="name">{escape(title)}, '
        f"{escape(unit)}</text>"
    )
