"""Notebooks as Markdown pages: text, code and outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any


def page_of(path: Path) -> str:
    """Convert a notebook to a page with a link to download it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    title, *rest = (part for cell in cells for part in _parts(cell))
    download = (
        f'<a href="{path.name}" download>Download this notebook</a> to run and change it. '
        "Its cells computed all outputs of this page."
    )
    heading, _, words = title.partition("\n")
    return "\n\n".join([heading, download, words.strip(), *rest]) + "\n"


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = _text(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield _fence(source, ".python")
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield _fence(_text(output["text"]), ".text .output")
        else:
            yield _shown(output["data"], output["metadata"])


def _shown(data: dict[str, Any], metadata: dict[str, Any]) -> str:
    """Convert a picture with its text alternative, or Markdown."""
    if "image/png" in data:
        words = escape(metadata["image/png"]["alt"])
        return f'<img alt="{words}" src="data:image/png;base64,{_text(data["image/png"]).strip()}">'
    return _text(data["text/markdown"])


def _fence(text: str, classes: str) -> str:
    return f"```{{{classes}}}\n{text.rstrip()}\n```"


def _text(lines: str | list[str]) -> str:
    """Join the lines of a text."""
    return lines if isinstance(lines, str) else "".join(lines)
