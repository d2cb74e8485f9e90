"""Where commands write: results on stdout, everything about progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


def print_json(value: Any) -> None:
    """JSON on stdout, and nothing else there."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def show(renderable: RenderableType) -> None:
    """A table or text on stdout; a pipe gets all columns, however wide."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, 200))
    console.print(renderable)


def progress_console() -> Console:
    """The console for progress."""
    return Console(stderr=True, highlight=False)


def plain_table(headers: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """A table of texts; nothing in them is taken for markup. Names, in front, stay whole."""
    table = Table(box=SIMPLE_HEAD)
    for index, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table
