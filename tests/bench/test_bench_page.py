"""docs/performance.md shows what the result files say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    path = REPOSITORY / "benchmarks" / "write_page.py"
    spec = importlib.util.spec_from_file_location("write_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_files_say(writer: ModuleType) -> None:
    page = writer.PAGE.read_text(encoding="utf-8")
    assert writer.filled(page) == page, "run: python benchmarks/write_page.py"


def result(
    time: str, *, status: str = "complete", device: str = "cpu", seconds: float = 0.25
) -> dict[str, Any]:
    timing = {
        "seconds": [seconds], "p20": seconds, "p50": seconds, "p80": seconds,
        "peak_memory_bytes": 1, "ratios": {},
    }  # fmt: skip
    shape = {"batch": 1, "tokens": 8, "channels": 4, "heads": 2}
    row = {
        "kind": "operator", "name": "copy", "backend": None, "shape": shape, "status": "measured",
        "note": "", "gate": [], "passes": {"forward": timing}, "extra": {},
    }  # fmt: skip
    hardware = {"cpu": "a cpu", "cores": 2, "threads": 1, "gpu": None}
    return {
        "benchmark": "ops", "status": status, "wall_seconds": 1.0, "rows": [row],
        "settings": {"device": device, "dtype": "float32"},
        "environment": {
            "time": time, "hardware": hardware, "libraries": {"torch": "2"}, "git_commit": None,
            "git_dirty": None, "command": "rifflemix bench ops",
        },
    }  # fmt: skip


BLOCK = "# Title\n<!-- results: ops, cpu, float32 -->\nold 123\n<!-- /results -->\nend\n"


def test_the_newest_complete_result_is_shown(writer: ModuleType, tmp_path: Path) -> None:
    files = {
        "old": result("2025-01-01T00:00:00", seconds=0.1),
        "new": result("2025-01-02T00:00:00", seconds=0.2),
        "partial": result("2025-01-03T00:00:00", status="partial", seconds=0.3),
        "gpu": result("2025-01-03T00:00:00", device="cuda:0", seconds=0.4),
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    page = writer.filled(BLOCK, tmp_path)
    assert "| copy | 200 |" in page
    assert "old 123" not in page
    assert "new.json" in page
    assert page.startswith("# Title\n<!-- results: ops, cpu, float32 -->\n")
    assert page.endswith("<!-- /results -->\nend\n")
    assert writer.filled(page, tmp_path) == page


def test_without_a_result_the_command_stands_there(writer: ModuleType, tmp_path: Path) -> None:
    page = writer.filled(BLOCK, tmp_path)
    assert "Not measured yet: `rifflemix bench ops --device cpu --dtype float32" in page
