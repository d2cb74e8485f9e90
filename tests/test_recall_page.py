"""The page on abilities of mixers: stored runs, sentences and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rifflemix as rm
from document_scripts import load_script

recall: Any = load_script("docs/build/recall.py")
TINY: dict[str, Any] = {
    "max_steps": 1, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 2, "threads": 1,
    "device": "cpu", "num_train": 16, "num_validation": 8, "num_test": 8,
}  # fmt: skip


def row(task: str, mixer: str, seed: int, length: int, accuracy: float) -> dict[str, Any]:
    return {
        "task": task, "mixer": mixer, "title": mixer.capitalize(), "seed": seed, "state_size": 64,
        "length": 16, "test_length": length, "accuracy": accuracy, "solved_at": 0.95,
        "command": "rifflemix compare", "cpu": "a processor",
    }  # fmt: skip


ROWS = [
    row(task, mixer, seed, length, accuracy if length == 16 else accuracy / 2)
    for task, mixer, accuracies in (
        ("mqar", "softmax", (1.0, 0.96)),
        ("mqar", "csp", (0.99, 0.5)),
        ("mqar", "csp_hybrid", (1.0, 0.99)),
        ("copying", "softmax", (0.94, 0.2)),
    )
    for seed, accuracy in enumerate(accuracies)
    for length in (16, 32)
]


def test_the_page_counts_solved_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "read_table", lambda: pd.DataFrame(ROWS))
    words = recall.sentences(Path(), [])
    assert "| `softmax`, `csp_hybrid` | `csp` |  |" in words
    assert "|  |  | `softmax` |" in words
    assert "`csp` on mqar from 74 to 100 %" in words
    assert "up to 78 %" in words  # 1 - 0.05^(1/2)
    pictures = {path.stem: text for path, text in recall.files().items()}
    assert all(text.startswith("<svg") for text in pictures.values())
    for cells in (
        "mqar 98 (2/2), copying 57 (0/2), state 64",
        "mqar 74 (1/2), copying -, state 64",
    ):
        assert cells in pictures["recall"]
    assert "![2 of 3 mixers solve mqar" in recall.picture(Path("docs/recall.md"), ["recall"])


def test_finished_runs_are_stored_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {name: TINY[name] for name in ("num_train", "num_validation", "num_test")}
    settings = {name: value for name, value in TINY.items() if name not in options}
    rm.compare(
        "copying", ["linear"], out=tmp_path / "suite" / "copying", seeds=2,
        task_options={**options, "length": 8, "test_lengths": [16]}, **settings,
    )  # fmt: skip
    monkeypatch.setattr(recall, "TABLE", tmp_path / "recall.csv")
    recall.main([str(tmp_path / "suite")])
    rows = recall.read_table()
    runs = list(zip(rows.seed, rows.test_length, strict=True))
    assert runs == [(0, 8), (0, 16), (1, 8), (1, 16)]
    assert set(rows.state_size) == {2 * 16 + 8}
    assert set(rows.max_steps) == {1}
