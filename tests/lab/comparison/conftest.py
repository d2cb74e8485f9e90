"""A finished comparison that several files read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from short_comparison import start


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("compare") / "deep" / "out"
    return out, start(out, seeds=(0, 1))
