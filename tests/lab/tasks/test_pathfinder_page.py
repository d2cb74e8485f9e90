"""Check that docs/pathfinder.md agrees with the generator and the result file."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from document_scripts import load_script

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def writer() -> ModuleType:
    return load_script("docs/write_pathfinder.py")


def test_the_page_is_up_to_date(writer: ModuleType) -> None:
    page = writer.PAGE.read_text(encoding="utf-8")
    assert writer.filled(page) == page, "run: python docs/write_pathfinder.py"


def test_every_table_is_on_the_page(writer: ModuleType) -> None:
    page = writer.PAGE.read_text(encoding="utf-8")
    assert all(page.count(f"<!-- {name} -->") == 1 for name in writer.TABLES)


def test_pictures_show_both_classes(writer: ModuleType) -> None:
    joined, apart = writer.pictures_of(32, "curv_contour_length_9", 2)
    assert joined.shape == apart.shape == (34, 68)
    assert (joined != apart).any()
