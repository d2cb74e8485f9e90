"""Texts and tables for rich, without markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rifflemix.text import terminal_text


def plain(value: object, *, is_bold: bool = False) -> Text:
    """One line of text."""
    return Text(terminal_text(value), style="bold" if is_bold else "")


def text_table(
    headers: Sequence[object],
    rows: Iterable[Iterable[object | Text]],
    *,
    title: object = "",
    right: Iterable[int] = (),
    whole: Iterable[int] = (),
) -> Table:
    """A table of texts.

    Args:
        headers: of the columns.
        rows: cells; a `Text` is shown as it is.
        title: above the table.
        right: columns that are aligned there.
        whole: columns that are never cut.
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
