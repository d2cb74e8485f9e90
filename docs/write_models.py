"""Write the table of docs/models.md from the registry; no number there is typed.

After adding or changing a model: python docs/write_models.py
"""

from __future__ import annotations

import re
from pathlib import Path

from rifflemix.report.models import models_markdown

PAGE = Path(__file__).resolve().parent / "models.md"
_BLOCK = re.compile(r"(<!-- models -->\n).*?(<!-- /models -->)", flags=re.DOTALL)


def filled(page: str) -> str:
    """The page with its table written anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{models_markdown()}\n{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
