"""Escape external text (names, paths, labels, error messages) for terminals, plots and Markdown.

HTML templates escape their own values.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

# Control characters, surrogates, line separators, and format characters. Some format characters
# reverse the direction of text.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # format characters that several scripts and emoji need

# Characters that start emphasis, code, a link, a tag, an entity, deleted text or a formula.
_MARKUP = re.compile(r"[\\`*\[\]]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])|&(?=#?\w+;)|[~$]")
_ENTITIES = {character: f"&#{ord(character)};" for character in "<&~$"}
# Characters that start a heading, quote or list at the start of a line.
_BLOCK = re.compile(r"^(?:>|[#+=-](?=[\s#=-]|$)|\d{1,9}(?=[.)](?:\s|$)))")


def terminal_text(value: object) -> str:
    r"""Convert a value to one line of text that is safe in terminals.

    Control characters become escapes such as \x1b.
    """
    text = str(value)
    return text if text.isprintable() else "".join(map(_shown, text))


def plot_text(value: object) -> str:
    """Convert a value to text for matplotlib, without formulas."""
    return re.sub(r"(?<!\\)\$", r"\\$", terminal_lines(value))


def terminal_lines(value: object) -> str:
    """Apply `terminal_text` to each line of a text."""
    return "\n".join(map(terminal_text, str(value).split("\n")))


class Markdown(str):
    """Text that is already Markdown: `markdown_text` does not escape it."""


def markdown_text(value: object) -> Markdown:
    """Escape text for use inside a line of Markdown."""
    if isinstance(value, Markdown):
        return value
    line = terminal_text(" ".join(str(value).split()))
    return Markdown(_MARKUP.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), line))


def bold(value: object) -> Markdown:
    """Escape text and make it bold."""
    return Markdown(f"**{markdown_text(value)}**")


def code(value: object) -> Markdown:
    """Format text as inline code, even if it contains backticks."""
    text = terminal_text(value)
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if len(ticks) > 1 else ""
    return Markdown(f"{ticks}{space}{text}{space}{ticks}")


def link(value: object, url: str) -> Markdown:
    """Escape text and make it a link to a quoted URL."""
    return Markdown(f"[{markdown_text(value)}]({url})")


def bullet_lines(values: Iterable[object]) -> list[str]:
    """Format values as the lines of a Markdown list."""
    return [f"- {_BLOCK.sub(_escaped, markdown_text(value), count=1)}" for value in values]


def table_lines(
    headers: Sequence[object], rows: Iterable[Iterable[object]], right: range = range(0)
) -> list[str]:
    """Format a Markdown table as lines; columns in `right` are right-aligned."""
    rule = [Markdown("---:" if column in right else "---") for column in range(len(headers))]
    return [_line(cells) for cells in (headers, rule, *rows)]


def _escaped(start: re.Match[str]) -> str:
    return f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}"


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(markdown_text(cell).replace("|", "\\|") for cell in cells) + " |"


def _shown(character: str) -> str:
    if unicodedata.category(character) in _UNSAFE and character not in _JOINERS:
        return character.encode("unicode_escape").decode("ascii")
    return character
