"""The documents tell the truth: their Python runs and their links lead somewhere."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
FENCE = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def python_blocks() -> list[object]:
    return [
        pytest.param(textwrap.dedent(code), id=f"{page.name}-{number}")
        for page in PAGES
        for number, (_, code) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), 1)
    ]


@pytest.mark.parametrize("code", python_blocks())
def test_python_in_the_documents_runs(code: str) -> None:
    exec(compile(code, "document", "exec"), {"__name__": "document"})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        link
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert not missing
