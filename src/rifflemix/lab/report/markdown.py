"""Generated sections of Markdown pages, between marker comments."""

from __future__ import annotations

from pathlib import Path

from rifflemix.errors import InputError
from rifflemix.files import write_bytes


def marked_text(page: Path, mark: str) -> str:
    """Read the text between `<!-- mark -->` and `<!-- /mark -->`.

    Raises:
        InputError: the page does not contain these lines.
    """
    return _around_marks(page, mark)[1].strip("\n")


def write_marked_text(page: Path, mark: str, text: str) -> None:
    """Replace the text that `marked_text` returns; raise InputError in the same cases."""
    before, _, after = _around_marks(page, mark)
    write_bytes(page, f"{before}\n{text}\n\n{after}".encode())


def _around_marks(page: Path, mark: str) -> tuple[str, str, str]:
    start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    before, starts, rest = page.read_text(encoding="utf-8").partition(start)
    text, ends, after = rest.partition(end)
    if not (starts and ends):
        raise InputError(f"{page}: expected the lines {start.strip()} and {end.strip()}, got none")
    return before + start, text, end + after
