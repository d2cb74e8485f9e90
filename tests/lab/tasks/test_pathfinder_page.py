"""Check the pictures and blocks of docs/pathfinder.md."""

from __future__ import annotations

import numpy as np

from document_scripts import REPOSITORY, load_script

writer = load_script("docs/build/blocks/pathfinder.py")


def test_every_table_is_on_the_page() -> None:
    page = (REPOSITORY / "docs" / "pathfinder.md").read_text(encoding="utf-8")
    assert all(page.count(f"<!-- {name} -->") == 1 for name in writer.WRITERS)


def test_pictures_show_both_classes() -> None:
    joined, apart = np.split(writer.strip(32, "curv_contour_length_9", 2, 1), 2)
    assert joined.shape == apart.shape == (34, 68)
    assert (joined != apart).any()
