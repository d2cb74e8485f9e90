"""Where to write labels beside disks so that none covers another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
        """Area shared with another box."""
        width = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        height = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return max(width, 0.0) * max(height, 0.0)

    def distance_to(self, x: float, y: float) -> float:
        """From a point to the nearest point of the box."""
        dx = max(self.x - x, 0.0, x - self.x - self.width)
        dy = max(self.y - y, 0.0, y - self.y - self.height)
        return math.hypot(dx, dy)


def place_labels(
    disks: Sequence[Disk],
    sizes: Sequence[tuple[float, float]],
    area: Box,
    bars: Sequence[Box] = (),
) -> list[Box]:
    """A box for each disk's label: near it, inside `area`, off the other labels and centres.

    Every label tries positions around its disk at growing distances; each takes the cheapest given
    all others, in a few sweeps. Deterministic.

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
    """Boxes that touch the disk, grown by each gap, at each angle."""
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
    """From the middle of a box to its edge along a direction."""
    along_x = width / 2 / abs(cos) if abs(cos) > 1e-9 else math.inf
    along_y = height / 2 / abs(sin) if abs(sin) > 1e-9 else math.inf
    return min(along_x, along_y)


def _fixed_cost(
    box: Box, own: Disk, disks: Sequence[Disk], bars: Sequence[Box], area: Box
) -> float:
    """The cost of a position that does not depend on the other labels."""
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
    """The first of the cheapest; none is tried whose fixed cost is above the best total so far."""
    there = [other for other in others if other is not None]
    best = (math.inf, 0)
    for i in sorted(range(len(candidates)), key=fixed.__getitem__):
        if fixed[i] > best[0]:
            break
        box = candidates[i]
        shared = sum(box.overlap(other) for other in there)
        best = min(best, (fixed[i] + _LABEL_WEIGHT * shared / (box.width * box.height), i))
    return candidates[best[1]]
