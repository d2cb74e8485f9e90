"""docs/reliability.md contains the numbers of the files that it names."""

from __future__ import annotations

from pathlib import Path

from document_scripts import load_script

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_figures_are_those_of_the_files() -> None:
    writer = load_script("docs/write_reliability.py")
    assert writer.block() in PAGE
    assert writer.filled(PAGE) == PAGE


def test_every_attack_is_on_the_page() -> None:
    files = (REPOSITORY / "tests" / "attack").glob("test_*.py")
    assert not [path.name for path in files if path.name not in PAGE]
