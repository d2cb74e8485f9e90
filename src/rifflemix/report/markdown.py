"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table_lines(
    headers: Sequence[str], rows: Iterable[Iterable[str]], right: range = range(0)
) -> list[str]:
    """The lines of a table; the columns in `right` are aligned there."""
    rule = ["---:" if column in right else "---" for column in range(len(headers))]
    return [_line(cells) for cells in (headers, rule, *rows)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
