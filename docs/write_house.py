"""Draws docs/house.svg: the rooms of the package and which of them import which.

The arrows are measured from the sources. An arrow that a chain of others implies is left out, and
so are those to the ground floor, which every room may use.

    python docs/write_house.py
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent
SOURCE = FOLDER.parent / "src" / "rifflemix"
PICTURE = FOLDER / "house.svg"
GROUND = ("text", "errors", "json_values", "locks", "files", "checks", "compat", "plugins")


@dataclass(frozen=True)
class Room:
    """A box: its row from the top, the middle of it in pixels, and what the room holds."""

    row: int
    x: int
    holds: str


ROOMS: Mapping[str, Room] = {
    "cli": Room(0, 430, "the command line"),
    "comparison": Room(1, 250, "compare: a fair table"),
    "reproduction": Room(1, 430, "the papers' numbers"),
    "bench": Room(1, 610, "time and memory"),
    "analysis": Room(1, 790, "looks inside models"),
    "surgery": Room(2, 250, "other libraries' models"),
    "recipes": Room(2, 430, "rows of the papers"),
    "runs": Room(2, 600, "what commands share"),
    "report": Room(2, 772, "parts of pages"),
    "parallel": Room(3, 90, "split sequences"),
    "testing": Room(4, 90, "the mixers' contract"),
    "models": Room(4, 250, "backbones, presets"),
    "tasks": Room(4, 430, "data, loss, metrics"),
    "train": Room(4, 660, "the loop and resume"),
    "mixers": Room(5, 250, "(B, N, C) to (B, N, C)"),
    "nn": Room(6, 250, "shared layers"),
    "ops": Room(7, 250, "functions on tensors"),
}
_WIDTH, _BOX_WIDTH, _BOX_HEIGHT, _ROW_HEIGHT, _TOP = 880, 148, 46, 92, 16
_PORT = 26  # pixels between two arrows at one side of a box
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")  # where a statement has statements


def _is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@functools.cache
def imports() -> dict[str, set[str]]:
    """Room -> the rooms that it imports, but for types; the ground floor is left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))] * (room in ROOMS)
        while todo:
            node = todo.pop()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rifflemix"):
                # `from rifflemix import ops`: the room is the name, not a part of the module.
                inner = str(node.module).split(".")[1:2]
                found[room] |= set(inner or [alias.name for alias in node.names])
            if not _is_for_types_only(node):
                todo.extend(child for part in _BODIES for child in getattr(node, part, ()))
    return {room: (targets & set(ROOMS)) - {room} for room, targets in found.items()}


def essential(arrows: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that no chain of others implies, in the order of the alphabet."""

    def reach(start: str) -> set[str]:
        direct = arrows.get(start, set())
        return direct.union(*(reach(room) for room in direct))

    return sorted(
        (room, target)
        for room, targets in arrows.items()
        for target in targets
        if not any(target in reach(other) for other in targets)
    )


def drawing() -> str:
    """The picture as SVG text; the same sources give the same text."""
    arrows = essential(imports())
    parts = [_arrow(room, target, arrows) for room, target in arrows]
    for name, room in ROOMS.items():
        parts.append(_box(room.x, _y(room.row), _BOX_WIDTH, name, room.holds))
    below = _y(1 + max(room.row for room in ROOMS.values()))
    ground = ", ".join(GROUND)
    parts.append(_box(_WIDTH // 2, below, _WIDTH - 32, ground, "the ground floor: for every room"))
    parts += [
        f'<text class="note" x="722" y="{_y(5) + 20 + 20 * line}">{escape(words)}</text>'
        for line, words in enumerate(_NOTES)
    ]
    height = below + _BOX_HEIGHT + _TOP
    return _SHEET.format(width=_WIDTH, height=height, body="\n".join(parts))


def _y(row: int) -> int:
    return _TOP + row * _ROW_HEIGHT


def _port(name: str, way: int, ways: list[int]) -> int:
    """Where an arrow meets a box: the arrows at one side stand in the order of where they go."""
    return round(ROOMS[name].x + _PORT * (ways.index(way) - (len(ways) - 1) / 2))


def _arrow(room: str, target: str, arrows: list[tuple[str, str]]) -> str:
    """A curve from the bottom of one box to the top of the other."""
    leaving = sorted(ROOMS[to].x for start, to in arrows if start == room)
    arriving = sorted(ROOMS[start].x for start, to in arrows if to == target)
    top, bottom = _y(ROOMS[target].row) - 2, _y(ROOMS[room].row) + _BOX_HEIGHT
    x1, x2 = _port(room, ROOMS[target].x, leaving), _port(target, ROOMS[room].x, arriving)
    middle = (bottom + top) // 2
    way = f"M {x1} {bottom} C {x1} {middle}, {x2} {middle}, {x2} {top}"
    return f'<path class="arrow" d="{way}" marker-end="url(#tip)"/>'


def _box(middle: int, y: int, width: int, title: str, words: str) -> str:
    return (
        f'<rect x="{middle - width // 2}" y="{y}" width="{width}" height="{_BOX_HEIGHT}" rx="6"/>'
        f'<text class="room" x="{middle}" y="{y + 19}">{escape(title)}</text>'
        f'<text x="{middle}" y="{y + 36}">{escape(words)}</text>'
    )


_NOTES = (
    "An arrow goes from a room to one it imports.",
    "Arrows that follow from others are left out.",
    "tasks and train do not know each other:",
    "recipes and runs bring them together.",
)
_SHEET = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
 width="{width}" height="{height}"
 aria-label="The rooms of the package, each above the rooms that it imports">
<style>
 rect {{ fill: #f4f6f8; stroke: #44546a; }}
 text {{ font: 12px sans-serif; text-anchor: middle; fill: #333; }}
 .room {{ font-weight: bold; font-size: 14px; fill: #111; }}
 .note {{ font-style: italic; }}
 .arrow {{ fill: none; stroke: #0072b2; stroke-width: 1.4; }}
 .tip {{ fill: #0072b2; }}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path class="tip" d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>
<rect width="{width}" height="{height}" style="fill: #fff; stroke: none"/>
{body}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
