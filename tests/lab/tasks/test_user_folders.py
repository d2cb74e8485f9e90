"""Folders of user data: recordings by class, and files of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task
from rifflemix.lab.trained.data import read_inputs

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.integers(0, 5, (40, 6))
TEXTS = [f"cat{i} {'runs ' * (1 + i % 3)}fast" for i in range(40)]
PARTS = {"train": slice(0, 24), "val": slice(24, 32), "test": slice(32, 40)}


def save_recordings(folder: Path, count: int = 10) -> None:
    for name in ("no", "yes"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            values = RANDOM.normal(size=(30 + number, 2)).astype(np.float32)
            np.save(folder / name / f"{number}.npy", values)


def test_recordings_have_the_classes_of_their_folders(tmp_path: Path) -> None:
    save_recordings(tmp_path)
    (tmp_path / "yes" / "notes.txt").write_text("read by nobody")
    task = load_task("folder", data=str(tmp_path), frame=10, hop=5)
    assert (task.kind, task.classes, task.num_features) == ("classification", ("no", "yes"), 20)
    assert sum(len(task.split(name)) for name in task.splits) == 20
    assert task.inputs is not None
    [encoded] = task.inputs.encode([tmp_path / "no" / "3.npy"])
    assert encoded.shape == (6, 20)


def test_recordings_can_have_folders_of_splits(tmp_path: Path) -> None:
    save_recordings(tmp_path / "train")
    save_recordings(tmp_path / "test", 4)
    task = rm.Task.from_folder(tmp_path)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [16, 4, 8]
    assert task.class_counts("test") == [4, 4]


def test_recordings_without_labels_are_not_in_the_splits(tmp_path: Path) -> None:
    save_recordings(tmp_path / "train")
    save_recordings(tmp_path / "test", 4)
    for name in ("no", "yes"):
        for path in (tmp_path / "test" / name).iterdir():
            path.rename(tmp_path / "test" / f"{name}-{path.name}")
        (tmp_path / "test" / name).rmdir()
    task = rm.Task.from_folder(tmp_path, frame=4)
    assert "8 recordings of test" in task.split_note
    assert sum(len(task.split(name)) for name in ("train", "validation", "test")) == 20
    assert len(read_inputs(task.inputs, tmp_path / "test").values) == 8
    (tmp_path / "test").rename(tmp_path / "val")
    with pytest.raises(InputError, match="val: "):
        rm.Task.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kind": "regression"}, "^kind: "), ({"label": "word"}, "^label: "), ({}, "other")],
)
def test_unusable_folders_of_recordings_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_recordings(tmp_path, 3)
    if not options:
        (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match=message):
        rm.Task.from_folder(tmp_path, **options)


TARGETS: dict[str, Any] = {
    "multilabel": ROWS[:, :3] % 2,
    "regression": RANDOM.normal(size=(40, 2)),
    "tokens": ROWS % 2,
    "next_token": None,
    "masked_token": None,
    "seq2seq": ROWS[:, ::-1],
}


@pytest.mark.parametrize("kind", TARGETS)
def test_arrays_of_every_kind_can_have_a_file_per_split(kind: str, tmp_path: Path) -> None:
    y = TARGETS[kind]
    for name, rows in PARTS.items():
        labels = {} if y is None else {"y": y[rows]}
        np.savez(tmp_path / f"{name}.npz", x=ROWS[rows], **labels)
    task = rm.Task.from_folder(tmp_path, kind=kind)
    assert task.kind == kind
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [24, 8, 8]


@pytest.mark.parametrize("kind", TARGETS)
def test_lines_of_every_kind_can_have_a_file_per_split(kind: str, tmp_path: Path) -> None:
    y = TARGETS[kind]
    labels = {"seq2seq": TEXTS, "tokens": [["A", *text.split()[1:]] for text in TEXTS]}
    if kind == "multilabel":
        labels[kind] = [["a", "b"][: 1 + i % 2] for i in range(40)]
    if kind == "regression":
        labels[kind] = y[:, 0].tolist()
    for name, rows in PARTS.items():
        lines = [
            {"text": text, **({} if y is None else {"label": label})}
            for text, label in zip(TEXTS[rows], labels.get(kind, TEXTS)[rows], strict=True)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    task = rm.Task.from_folder(tmp_path, kind=kind)
    assert task.kind == kind
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [24, 8, 8]


@pytest.mark.parametrize("has_validation", [True, False])
def test_a_forecast_has_a_period_per_file(has_validation: bool, tmp_path: Path) -> None:
    series = RANDOM.normal(size=100)
    files = {"train": slice(0, 60), "val": slice(60, 80), "test": slice(80, 100)}
    if not has_validation:
        files = {"train": slice(0, 80), "test": slice(80, 100)}
    for name, steps in files.items():
        lines = "\n".join(map(repr, series[steps].tolist()))
        (tmp_path / f"{name}.csv").write_text(f"a\n{lines}\n")
    options: dict[str, Any] = {"kind": "forecast", "input": ["a"], "context": 4, "horizon": 2}
    task = rm.Task.from_folder(tmp_path, **options)
    ends = (60, 80) if has_validation else (64, 80)
    assert (
        task.split("validation")[0][1][0][:, 0].tolist() == series[ends[0] : ends[0] + 2].tolist()
    )
    assert task.split("test")[0][1][0][:, 0].tolist() == series[80:82].tolist()
    assert len(task.split("train")) == ends[0] - 5
    assert "as given" in task.split_note


def test_steps_of_a_forecast_keep_the_order_of_time() -> None:
    series, options = RANDOM.normal(size=60), {"kind": "forecast", "context": 4, "horizon": 2}
    later = {"train": range(20, 60), "validation": range(10), "test": range(10, 20)}
    with pytest.raises(InputError, match=r"^split: "):
        rm.Task.from_arrays(series, split=later, **options)
    split = {"train": range(40), "validation": range(40, 50), "test": range(50, 60)}
    assert len(rm.Task.from_arrays(series, split=split, **options).split("test")) == 9
    with pytest.raises(InputError, match=r"^split: "):
        rm.Task.from_arrays([series, series], split=split, **options)


def test_pairs_of_arrays_have_padding(tmp_path: Path) -> None:
    targets = ROWS[:, ::-1].copy()
    targets[::2, 4:] = -100
    np.savez(tmp_path / "p.npz", x=ROWS, y=targets, lengths=np.full(40, 5))
    padded = load_task("npz", data=str(tmp_path / "p.npz"), kind="seq2seq")
    ragged = rm.Task.from_arrays(
        [row[:5] for row in ROWS],
        [row[row >= 0] for row in targets],
        kind="seq2seq",
    )
    for name in ("train", "validation", "test"):
        assert padded.split(name).digest() == ragged.split(name).digest()
    assert padded.max_length == 7


@pytest.mark.parametrize(
    ("x", "y", "lengths", "message"),
    [
        (ROWS, ROWS, np.full(40, 7), "^lengths: "),
        (ROWS.tolist(), ROWS, np.full(40, 3), "^lengths: "),
        (ROWS, np.where(ROWS > 3, -100, ROWS), None, "^y: "),
        (ROWS, np.full((40, 6), -100), None, "^y: .*sample 0"),
    ],
)
def test_wrong_padding_of_pairs_is_refused(x: Any, y: Any, lengths: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rm.Task.from_arrays(x, y, lengths=lengths, kind="seq2seq")
