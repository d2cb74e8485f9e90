"""Tests of user data with unequal lengths: lengths, advice and empty samples."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputWarning
from rifflemix.lab.tasks import load_task

SPLITS = ("train", "validation", "test")
RANDOM = np.random.default_rng(11)


def sizes(task: rm.Task) -> list[int]:
    return [len(task.split(name)) for name in SPLITS]


def texts(task: rm.Task, split: str) -> dict[str, Any]:
    part = task.split(split)
    return {
        bytes((part[i][0].numpy() - 1).astype(np.uint8)).decode(): part[i][1]
        for i in range(len(part))
    }


def arrays(count: int, first: int = 0) -> dict[str, Any]:
    x = np.arange(first, first + 6 * count).reshape(count, 6)
    return {"x": x, "y": np.arange(count) % 2}


def test_lengths_of_an_npz_are_read_by_default(tmp_path: Path) -> None:
    counts = np.arange(20) % 6 + 1
    np.savez(tmp_path / "a.npz", **arrays(20), lengths=counts, other=counts % 2 + 1)
    with pytest.warns(InputWarning, match=r"a\.npz: .*other"):
        task = load_task("npz", data=str(tmp_path / "a.npz"))
    assert task.padding
    found = sorted(len(task.split(n)[i][0]) for n in SPLITS for i in range(len(task.split(n))))
    assert found == sorted(counts.tolist())
    with pytest.warns(InputWarning, match=r"lengths = other"):
        task = load_task("npz", data=str(tmp_path / "a.npz"), lengths="other")
    assert task.max_length == 2
    np.savez(tmp_path / "c.npz", x=arrays(20)["x"], lengths=counts % 2)
    assert not load_task("npz", data=str(tmp_path / "c.npz"), label="lengths").padding
    np.savez(tmp_path / "b.npz", **arrays(20))
    assert not load_task("npz", data=str(tmp_path / "b.npz")).padding


def test_lengths_next_to_images_are_ignored(tmp_path: Path) -> None:
    images = RANDOM.integers(0, 255, (20, 4, 4))
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(20) % 2, lengths=np.full(20, 3))
    with pytest.warns(InputWarning, match=r"lengths = none"):
        task = load_task("npz", data=str(tmp_path / "a.npz"))
    assert not task.padding
    np.savez(tmp_path / "a.npz", x=images[:0], y=[], lengths=[])
    with pytest.raises(rm.InputError, match="x: "):
        load_task("npz", data=str(tmp_path / "a.npz"))


def test_lengths_are_in_every_file_of_a_folder_or_in_no_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", **arrays(40), lengths=np.arange(40) % 6 + 1)
    np.savez(tmp_path / "test.npz", **arrays(6, first=250))
    with pytest.raises(rm.InputError, match=r"lengths: expected .*, got none in test\.npz"):
        rm.Task.from_folder(tmp_path)
    np.savez(tmp_path / "test.npz", **arrays(6, first=250), lengths=np.full(6, 2))
    task = rm.Task.from_folder(tmp_path)
    assert {len(task.split("test")[i][0]) for i in range(6)} == {2}


@pytest.mark.parametrize("shape", [(), (2,)], ids=["tokens", "vectors"])
def test_advice_for_pickled_sequences_works(shape: tuple[int, ...], tmp_path: Path) -> None:
    path, y = tmp_path / "a.npz", np.arange(30) % 2
    x = np.empty(30, dtype=object)
    for i in range(30):
        x[i] = RANDOM.normal(size=(1 + i % 4, *shape)) if shape else np.arange(i, i + 1 + i % 4)
    np.savez(path, x=x, y=y)
    with pytest.raises(rm.InputError, match="pickled objects") as caught:
        load_task("npz", data=str(path))
    _, advice = re.findall(r"`(.*?)`", str(caught.value))
    exec(advice, {"np": np, "x": x, "y": y, "path": path})
    task = load_task("npz", data=str(path))
    expected = rm.Task.from_arrays(list(x), y)
    for split in SPLITS:
        for i in range(len(expected.split(split))):
            assert task.split(split)[i][0].equal(expected.split(split)[i][0])


def test_advice_for_pickled_texts_works(tmp_path: Path) -> None:
    path, y = tmp_path / "a.npz", np.arange(30) % 2
    x = np.array([f"text {i}" for i in range(30)], dtype=object)
    np.savez(path, x=x, y=y)
    with pytest.raises(rm.InputError, match="pickled objects") as caught:
        load_task("npz", data=str(path))
    exec(re.findall(r"`(.*?)`", str(caught.value))[0], {"np": np, "x": x, "y": y, "path": path})
    assert "text 3" in {t for n in SPLITS for t in texts(load_task("npz", data=str(path)), n)}


@pytest.mark.parametrize("task", ["csv", "jsonl"])
def test_rows_with_an_empty_text_are_skipped_on_request(task: str, tmp_path: Path) -> None:
    rows = [("" if i in (3, 8) else f"word {i}", i % 2) for i in range(40)]
    path = tmp_path / f"a.{task}"
    if task == "csv":
        path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    else:
        path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    names = {"data": str(path), "input": "text", "label": "label"}
    with pytest.raises(rm.InputError, match=r"line \d+: .*'text', got none; drop_empty"):
        load_task(task, **names)
    found = load_task(task, **names, drop_empty=True)
    everything = {text: label for n in SPLITS for text, label in texts(found, n).items()}
    assert everything == {text: label for text, label in rows if text}
    assert found.split_note.endswith("; 2 empty samples left out")
    assert found.options["drop_empty"] is True
    folder = tmp_path / "folder"
    folder.mkdir()
    path.rename(folder / f"train.{task}")
    assert sum(sizes(rm.Task.from_folder(folder, input="text", drop_empty=True))) == 38


def test_empty_label_or_number_is_never_skipped(tmp_path: Path) -> None:
    for row in ("x,", "x,1\n,"):
        (tmp_path / "a.csv").write_text(f"text,label\na,0\n{row}\n")
        with pytest.raises(rm.InputError, match="'label'"):
            rm.Task.from_csv(tmp_path / "a.csv", input="text", label="label", drop_empty=True)
    (tmp_path / "a.csv").write_text("a,b,label\n1,,0\n")
    with pytest.raises(rm.InputError, match="'b'"):
        rm.Task.from_csv(tmp_path / "a.csv", input=["a", "b"], label="label", drop_empty=True)


EMPTY = [0, 7, 12]


def some_are_empty(kind: str) -> dict[str, Any]:
    """Build 30 samples, three of them empty, with `lengths` if needed."""
    counts = [0 if i in EMPTY else 1 + i % 4 for i in range(30)]
    if kind == "texts":
        return {"x": [chr(97 + i % 26) * n for i, n in enumerate(counts)]}
    if kind == "lists":
        return {"x": [[i] * n for i, n in enumerate(counts)]}
    return {"x": np.arange(120).reshape(30, 4), "lengths": torch.tensor(counts)}


@pytest.mark.parametrize("kind", ["texts", "lists", "lengths"])
@pytest.mark.parametrize("split", ["shares", "names", "indices", "masks"])
def test_empty_samples_are_skipped_in_all_arrays(kind: str, split: str) -> None:
    codes = np.arange(30) % 3
    given: Any = {
        "shares": (0.6, 0.2, 0.2),
        "names": [("train", "validation", "test")[code] for code in codes],
        "indices": {n: np.flatnonzero(codes == i) for i, n in enumerate(SPLITS)},
        "masks": {n: codes == i for i, n in enumerate(SPLITS)},
    }[split]
    options = {**some_are_empty(kind), "y": (np.arange(30) // 3) % 2, "split": given}
    with pytest.raises(rm.InputError, match=r"drop_empty=True"):
        rm.Task.from_arrays(**options)
    groups = np.arange(30) if split == "shares" else None
    task = rm.Task.from_arrays(**options, groups=groups, drop_empty=True)
    kept = [i for i in range(30) if i not in EMPTY]
    rows = {
        key: [value[i] for i in kept] if key != "split" else value for key, value in options.items()
    }
    if split != "shares":
        rows["split"] = [SPLITS[codes[i]] for i in kept]
    rows["x"] = np.array(rows["x"]) if kind == "lengths" else rows["x"]
    if kind == "lengths":
        rows["lengths"] = np.array([int(n) for n in rows["lengths"]])
    expected = rm.Task.from_arrays(**rows, groups=None if groups is None else groups[kept])
    for name in SPLITS:
        ours, theirs = task.split(name), expected.split(name)
        assert len(ours) == len(theirs)
        for i in range(len(ours)):
            assert torch.equal(ours[i][0], theirs[i][0])
            assert ours[i][1] == theirs[i][1]
    assert task.split_note.endswith("3 empty samples left out")


def test_samples_that_cannot_be_skipped_are_refused() -> None:
    with pytest.raises(rm.InputError, match=r"x: .*token"):
        rm.Task.from_arrays(["", ""], [0, 1], drop_empty=True)
    with pytest.raises(rm.InputError, match="y: expected 3 values"):
        rm.Task.from_arrays(["a", "", "b"], [0, 1], drop_empty=True)
    with pytest.raises(rm.InputError, match="drop_empty"):
        rm.Task.from_arrays(["a", "b"], [0, 1], drop_empty="yes")
    full = rm.Task.from_arrays(list("abcdefghijklmnopqrst"), [0, 1] * 10, drop_empty=True)
    assert "left out" not in full.split_note
