"""Text from outside (names, paths, labels, error messages), made safe for what shows it.

Values of HTML pages are escaped by their templates.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

# Control characters, surrogates, line separators, and format characters such as those that
# reverse the direction of text.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # format characters that several scripts and emoji need

# What begins emphasis, code, a link, a tag, an entity, deleted text or a formula.
_MARKUP = re.compile(r"[\\`*\[\]]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])|&(?=#?\w+;)|[~$]")
_ENTITIES = {character: f"&#{ord(character)};" for character in "<&~$"}
# What begins a heading, quote or list at the start of a line.
_BLOCK = re.compile(r"^(?:>|[#+=-](?=[\s#=-]|$)|\d{1,9}(?=[.)](?:\s|$)))")


def terminal_text(value: object) -> str:
    r"""Write a text in one line, with escapes such as \x1b for what would control a terminal."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_shown, text))


def plot_text(value: object) -> str:
    """Write a text for matplotlib without formulas."""
    return re.sub(r"(?<!\\)\$", r"\\$", terminal_lines(value))


def terminal_lines(value: object) -> str:
    """Write each line of a text as `terminal_text` does."""
    return "\n".join(map(terminal_text, str(value).split("\n")))


class Markdown(str):
    """A text that is Markdown already: `markdown_text` leaves it alone."""


def markdown_text(value: object) -> Markdown:
    """Escape a text within a line of Markdown."""
    if isinstance(value, Markdown):
        return value
    line = terminal_text(" ".join(str(value).split()))
    return Markdown(_MARKUP.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), line))


def bold(value: object) -> Markdown:
    """Escape a text and make it bold."""
    return Markdown(f"**{markdown_text(value)}**")


def code(value: object) -> Markdown:
    """Write a text as code, also if it has backticks."""
    text = terminal_text(value)
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if len(ticks) > 1 else ""
    return Markdown(f"{ticks}{space}{text}{space}{ticks}")


def link(value: object, url: str) -> Markdown:
    """Escape a text and make it a link to a quoted URL."""
    return Markdown(f"[{markdown_text(value)}]({url})")


def bullet_lines(values: Iterable[object]) -> list[str]:
    """The lines of a Markdown list."""
    return [f"- {_BLOCK.sub(_escaped, markdown_text(value), count=1)}" for value in values]


def table_lines(
    headers: Sequence[object], rows: Iterable[Iterable[object]], right: range = range(0)
) -> list[str]:
    """The lines of a Markdown table; the columns in `right` are aligned there."""
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
