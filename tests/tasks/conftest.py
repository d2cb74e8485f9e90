"""Every test here has a cache of its own: the user's is never touched."""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(folder))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def write_npz_xz() -> Callable[..., None]:
    def write(path: Path, **arrays: Any) -> None:
        content = io.BytesIO()
        np.savez(content, **arrays)
        path.write_bytes(lzma.compress(content.getvalue(), preset=0))

    return write


@pytest.fixture
def write_lines_xz() -> Callable[[Path, list[Any]], None]:
    def write(path: Path, rows: list[Any]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(lzma.compress(text.encode(), preset=0))

    return write
