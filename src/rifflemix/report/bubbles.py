"""Accuracy against speed, disk area by memory, in the coordinates of a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rifflemix.report.units import format_bytes, format_rate
from rifflemix.reproduction.tables import decimals

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


@dataclass(frozen=True)
class Disk:
    """A bubble as it is drawn: centre, radius, where its number stands, what it says."""

    x: str
    y: str
    radius: str
    text_y: str
    told: str


@dataclass(frozen=True)
class Label:
    """A text of the axes."""

    x: str
    y: str
    text: str
    anchor: str


@dataclass(frozen=True)
class Chart:
    """Disks and axes in SVG coordinates, which templates/parts.html draws."""

    title: str
    unit: str
    disks: tuple[Disk, ...]
    texts: tuple[Label, ...]
    axis: str = f"{_LEFT},{_TOP} {_LEFT},{_HEIGHT - _BOTTOM} {_WIDTH - _RIGHT},{_HEIGHT - _BOTTOM}"
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT


def bubble_chart(title: str, unit: str, bubbles: Sequence[Bubble]) -> Chart:
    """Further right is faster (logarithmic), further up a larger value, area is memory."""
    speeds = [math.log(bubble.speed) for bubble in bubbles]
    values = [bubble.value for bubble in bubbles]
    largest = max(bubble.memory for bubble in bubbles)
    disks = []
    for bubble in bubbles:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * _share(math.log(bubble.speed), speeds)
        y = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * _share(bubble.value, values)
        radius = _LARGEST_RADIUS * math.sqrt(bubble.memory / largest)
        place = (f"{x:.1f}", f"{y:.1f}", f"{radius:.1f}", f"{y + 3:.1f}")
        disks.append(Disk(*place, _told(bubble, unit)))
    return Chart(title, unit, tuple(disks), _labels(unit, bubbles))


def _told(bubble: Bubble, unit: str) -> str:
    value = f"{bubble.value:{decimals(unit, bubble.value)}} {unit}"
    speed, memory = format_rate(bubble.speed), format_bytes(bubble.memory)
    return f"{bubble.name}: {value}, {speed} steps/s, {memory}"


def _share(value: float, values: Sequence[float]) -> float:
    """Where a value lies between the least and the greatest, with room for disks at both ends."""
    low, high = min(values), max(values)
    inner = (value - low) / (high - low) if high > low else 0.5
    return 0.1 + 0.8 * inner


def _labels(unit: str, bubbles: Sequence[Bubble]) -> tuple[Label, ...]:
    """The ends of both axes, and what goes across."""
    bottom = _HEIGHT - _BOTTOM
    span, rise = _WIDTH - _RIGHT - _LEFT, bottom - _TOP
    speeds = [bubble.speed for bubble in bubbles]
    values = [bubble.value for bubble in bubbles]
    across = [(0.1, 14, format_rate(min(speeds))), (0.9, 14, format_rate(max(speeds)))]
    across.append((0.5, 32, "steps/s"))
    up = [(bottom - 0.1 * rise, min(values)), (_TOP + 0.1 * rise, max(values))]
    return (
        *(Label(f"{_LEFT + s * span:.0f}", f"{bottom + d}", t, "middle") for s, d, t in across),
        *(
            Label(f"{_LEFT - 6}", f"{y + 3:.0f}", f"{value:{decimals(unit, value)}}", "end")
            for y, value in up
        ),
    )
