"""Give every test a separate cache, so that the user's cache is never touched."""

from __future__ import annotations

import io
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rifflemix.lab.tasks.data_io.file_task import Remote


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
def put_on_hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], list[str]]:
    """Put splits on a fake hub and record the fetched addresses."""

    def put(repository: str, splits: Any) -> list[str]:
        fetched: list[str] = []

        def download(remote: Remote, *_: Any) -> bytes:
            fetched.append(remote.url)
            return b"content"

        def load_dataset(kind: str, *, data_files: dict[str, str], cache_dir: str) -> Any:
            assert kind == "parquet"
            assert all(f"/datasets/{repository}/resolve/" in url for url in fetched)
            assert all(Path(path).read_bytes() == b"content" for path in data_files.values())
            return {name: splits[name] for name in data_files}

        monkeypatch.setattr("rifflemix.lab.tasks.data_io.file_task.download", download)
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
        return fetched

    return put


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


@pytest.fixture
def write() -> Callable[..., np.ndarray]:
    """Write a random image and return its pixels (height, width, 3)."""
    rng = np.random.default_rng(0)

    def image(path: Path, height: int = 8, width: int = 8) -> np.ndarray:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        # Always PNG: readers look at the content, not at the name.
        Image.fromarray(pixels).save(path, format="PNG")
        return pixels

    return image
