"""Shared fixtures. `OMP_WAIT_POLICY` is set before torch is imported: spinning threads crawl."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("RIFFLEMIX_SHARED", REPOSITORY.parent / "shared"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def golden() -> Callable[[str], dict[str, np.ndarray]]:
    """Load a golden vector file by name; skips where the vectors are not at hand."""

    def load(name: str) -> dict[str, np.ndarray]:
        path = SHARED / "golden" / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"golden vector {name} is not at hand (set RIFFLEMIX_SHARED)")
        with np.load(path) as arrays:
            return dict(arrays)

    return load


@pytest.fixture
def shared_data() -> Path:
    """Folder of real data files; skips where they are not at hand."""
    path = SHARED / "data"
    if not path.exists():
        pytest.skip("shared data is not at hand (set RIFFLEMIX_SHARED)")
    return path


@pytest.fixture
def papers() -> Path:
    """Folder of the papers' texts; skips where they are not at hand."""
    path = SHARED / "papers"
    if not path.exists():
        pytest.skip("the papers' texts are not at hand (set RIFFLEMIX_SHARED)")
    return path
