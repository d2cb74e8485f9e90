"""Give every test a separate cache, so that the user's cache is never touched."""

from __future__ import annotations

import io
import json
import lzma
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cifar10_files import PER_BATCH, Planes
from language_files import OTHER, TRAIN
from PIL import Image

from rifflemix.lab.tasks.data_io.file_task import Remote
from rifflemix.lab.tasks.images import cifar


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


@pytest.fixture
def ptb(data: Path) -> Path:
    (data / "ptb.train.txt").write_text(TRAIN)
    (data / "ptb.valid.txt").write_text(OTHER, encoding="utf-8")
    (data / "ptb.test.txt").write_text("the dog sat\n")
    return data


@pytest.fixture
def planes(monkeypatch: pytest.MonkeyPatch) -> Planes:
    """Build images (M, 3, 32, 32) and labels of a tiny CIFAR-10."""
    binary = cifar._BINARY_10
    files = {part: dict.fromkeys(names, PER_BATCH) for part, names in binary.files.items()}
    monkeypatch.setattr(cifar, "_BINARY_10", replace(binary, files=files))
    rng = np.random.default_rng(0)
    return {
        part: (
            rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8),
            rng.integers(0, 10, count, dtype=np.uint8),
        )
        for part, count in (("train", 5 * PER_BATCH), ("test", PER_BATCH))
    }
