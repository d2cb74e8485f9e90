"""Golden vectors contain only numbers, and the README of tests/golden lists all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent / "golden"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
FILES = sorted(path.stem for path in FOLDER.glob("*.npz"))
MEBIBYTE = 2**20


def entries() -> dict[str, str]:
    """Return the README's entry for each file."""
    parts = re.split(r"^## (\S+)\.npz$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def listed_shapes(entry: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an entry's tensors by name."""
    tensors = entry[entry.index("- tensors:") :]
    return {
        name: tuple(int(n) for n in re.findall(r"\d+", shape))
        for name, shape in re.findall(r"`(\S+?)` \(([\d, ]*)\)", tensors)
    }


def listed_gradients(entry: str) -> int:
    """Return the number of parameter gradients of an entry.

    The shapes are equal to the shapes of the parameters.
    """
    told = re.search(r"plus (\d+) `gp\.\*`", entry)
    return int(told[1]) if told is not None else 0


def test_every_golden_file_has_an_entry() -> None:
    assert sorted(entries()) == FILES


def test_golden_files_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MEBIBYTE


def test_readme_lists_every_tensor(golden: Callable[[str], dict[str, np.ndarray]]) -> None:
    for name, entry in entries().items():
        arrays, shapes = golden(name), listed_shapes(entry)
        gradients = {key for key in arrays if key.startswith("gp.")}
        assert len(gradients) == listed_gradients(entry), name
        assert set(arrays) - gradients == set(shapes), name
        for key, array in arrays.items():
            assert array.dtype in (np.float32, np.int32, np.bool_), (name, key)
            assert np.isfinite(array).all(), (name, key)
            assert array.shape == shapes[f"p.{key[3:]}" if key in gradients else key], (name, key)
