"""docs/reliability.md shows the figures of the files that it names."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def writer() -> Any:
    spec = importlib.util.spec_from_file_location(
        "write_reliability", REPOSITORY / "docs" / "write_reliability.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_are_those_of_the_files() -> None:
    module = writer()
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.block() in page
    assert module.filled(page) == page


def test_every_attack_is_on_the_page() -> None:
    page = writer().PAGE.read_text(encoding="utf-8")
    files = sorted(path.name for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in files if name not in page] == [Path(__file__).name]
