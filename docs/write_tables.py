"""Write the tables of docs/mixers.md, models.md and export.md from the registries.

No number or name there is typed. After adding or changing a mixer or a model:

    python docs/write_tables.py
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rifflemix.mixers.catalogue import exports_markdown, mixers_markdown
from rifflemix.models.catalogue import models_markdown

FOLDER = Path(__file__).resolve().parent
TABLES: dict[str, Callable[[], str]] = {
    "mixers": mixers_markdown,
    "models": models_markdown,
    "export": exports_markdown,
}


def filled(name: str, page: str) -> str:
    """The page with its table written anew."""
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", flags=re.DOTALL)
    return block.sub(lambda match: f"{match[1]}\n{TABLES[name]()}\n{match[2]}", page)


if __name__ == "__main__":
    for name in TABLES:
        path = FOLDER / f"{name}.md"
        path.write_text(filled(name, path.read_text(encoding="utf-8")), encoding="utf-8")
