"""Generated blocks of pages: everything between `<!-- NAME: OPTIONS -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import claims.page
import recall
from common import DOCS, ROOT

from blocks import comparisons, findings, mixers, pathfinder, speed
from rifflemix.mixers.registry import exports_markdown, mixers_markdown

_BLOCK = re.compile(r"(<!-- ([a-z-]+)(?:: ([^>]*?))? -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)
WRITERS: Mapping[str, Callable[[Path, list[str]], str]] = {
    "mixers": lambda *_: mixers_markdown(),
    "export": lambda *_: exports_markdown(),
    **claims.page.WRITERS,
    **comparisons.WRITERS,
    **findings.WRITERS,
    **mixers.WRITERS,
    **pathfinder.WRITERS,
    **recall.WRITERS,
    **speed.WRITERS,
}


def files() -> dict[Path, str]:
    """Return the pages with new blocks."""
    pages = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    return {page: filled(page, page.read_text(encoding="utf-8")) for page in pages}


def filled(page: Path, text: str) -> str:
    """Return the text of a page with new blocks."""

    def block(match: re.Match[str]) -> str:
        start, name, options, _, end = match.groups()
        if name not in WRITERS:
            return match[0]
        body = WRITERS[name](page, [option.strip() for option in (options or "").split(",")])
        gap = "\n" if "\n" in body.strip() else ""  # a single line needs no blank lines
        return f"{start}{gap}{body.strip()}\n{gap}{end}"

    return _BLOCK.sub(block, text)
