"""Plain texts and tables for rich, without markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rifflemix.text import terminal_text


def plain(value: object, *, is_bold: bool = False) -> Text:
    """Create a rich text of one line."""
    return Text(terminal_text(value), style="bold" if is_bold else "")


def text_table(
    headers: Sequence[object],
    rows: Iterable[Iterable[object | Text]],
    *,
    title: object = "",
    right: Iterable[int] = (),
    whole: Iterable[int] = (),
) -> Table:
    """Create a table of texts.

    Args:
        headers: titles of the columns.
        rows: cells; a `Text` keeps its style.
        title: title above the table.
        right: indices of right-aligned columns.
        whole: indices of columns that are never wrapped.
    """
    table = Table(box=SIMPLE_HEAD, title=plain(title) if title else None)
    for index, header in enumerate(headers):
        table.add_column(
            plain(header),
            justify="right" if index in right else "left",
            overflow="fold",
            no_wrap=index in whole,
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return table
