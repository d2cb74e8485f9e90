from __future__ import annotations

from pathlib import Path

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.report.page import marked_text, write_marked_text


def test_only_marked_text_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n<!-- a -->\n\nold\n\n<!-- /a -->\n<!-- b -->\nkept\n<!-- /b -->\n")
    assert marked_text(page, "a") == "old"
    write_marked_text(page, "a", "new\nlines")
    assert marked_text(page, "a") == "new\nlines"
    assert page.read_text() == (
        "# Title\n\n<!-- a -->\n\nnew\nlines\n\n<!-- /a -->\n<!-- b -->\nkept\n<!-- /b -->\n"
    )


@pytest.mark.parametrize("text", ["", "<!-- a -->\n", "<!-- /a -->\n<!-- a -->\n", "<!-- a -->x"])
def test_page_without_marks_is_unchanged(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(InputError, match=r"page\.md.*<!-- a -->.*<!-- /a -->"):
        write_marked_text(page, "a", "new")
    assert page.read_text() == text
