"""Tests of tasks from user files, folders and data sets, including damaged data."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.lab.tasks import load_task, task_card, task_status
from rifflemix.lab.tasks.data_io import safe_readers

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


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Write a text table with commas, quotes and a line feed."""
    path = tmp_path / "wine.csv"
    rows = [
        f'"dry, ""{i}""\n wine",{"good" if i % 3 else "bad"},{i // 2},{i / 4},{i / 8}'
        for i in range(30)
    ]
    path.write_text("\n".join(["note,verdict,cellar,price,cost", *rows]) + "\n", encoding="utf-8")
    return path


def test_a_table_of_texts(reviews: Path) -> None:
    task = rm.Task.from_csv(reviews, input="note", label="verdict")
    assert (task.num_classes, task.vocab_size, sizes(task)) == (2, 257, [18, 6, 6])
    everything = {text: label for name in SPLITS for text, label in texts(task, name).items()}
    assert everything['dry, "7"\n wine'] == 1  # bad, good: in alphabetical order
    assert everything['dry, "3"\n wine'] == 0
    assert (task.data_source, task.card and task.card.title) == ("wine.csv", "wine.csv")


@pytest.mark.parametrize("form", ["gz", "tsv", "bom"])
def test_compressed_tsv_and_bom_tables_are_read(reviews: Path, form: str) -> None:
    content = reviews.read_bytes()
    if form == "gz":
        path = reviews.with_suffix(".csv.gz")
        path.write_bytes(gzip.compress(content))
    elif form == "tsv":
        path = reviews.with_suffix(".tsv")
        path.write_bytes(content.replace(b",", b"\t"))
    else:
        path = reviews
        path.write_bytes(b"\xef\xbb\xbf" + content)
    task = rm.Task.from_csv(path, input="note", label="verdict", group="cellar")
    assert sum(sizes(task)) == 30
    assert "whole groups" in task.split_note


def test_columns_of_numbers_and_labels_with_a_decimal_point(reviews: Path) -> None:
    task = rm.Task.from_csv(reviews, input=["cellar", "price"], label="cost")
    assert (task.metric, task.num_features, task.max_length) == ("rmse", 1, 2)
    inputs, target = task.split("test")[0]
    assert inputs[1, 0] == pytest.approx(2 * target)


def test_a_column_of_split_names(tmp_path: Path) -> None:
    rows = [
        {"ids": [i, i + 1], "y": i % 2, "part": "dev" if i < 4 else "test" if i < 8 else "train"}
        for i in range(20)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    task = rm.Task.from_csv(path, input="ids", label="y", split="part")
    assert sizes(task) == [12, 4, 4]
    assert task.split("validation")[2][0].tolist() == [2, 3]


WRONG_TABLES = {
    "no column": ("a,b\n1,2\n", {}, r"t\.csv 'text'"),
    "no value": ("text,y\nx,1\n,0\n", {}, r"t\.csv.*\b3\b.*'text'"),
    "no rows": ("text,y\n", {}, r"t\.csv"),
    "no lines": ("\n", {"end": ".jsonl"}, r"t\.jsonl"),
    "short row": ("text,y\nx\n", {}, r"t\.csv.*\b2\b.*\b2\b.*got 1\b"),
    "open quote": ('text,y\n"x,1\n', {}, r"\b2\b.*.unexpected"),
    "two names": ("text,text\nx,1\n", {}, "'text'"),
    "no text": (b"text,y\n\xff\xfe,1\n", {}, r"UTF-8\b"),
    "semicolons": ("text;y\nx;1\n", {}, r"t\.csv.*','.*got ';'"),
    "tabs": ("text\ty\nx\t1\n", {}, r"t\.csv.*','.*got '\\t'"),
    "label read": ("text,y\nx,1\n", {"input": "y"}, "input: .*'y'"),
    "no number": ("text,y\nx,1\n", {"input": ["text"]}, r"t\.csv.*\b2\b"),
    "split": ("text,y,s\nx,1,tra\n", {"split": "s"}, r"t\.csv.*\b2\b"),
    "input": ("text,y\nx,1\n", {"input": ""}, "got ''"),
    "no input": ("text,y\nx,1\n", {"input": None}, "input: .*got None"),
    "no group": ("text,y\nx,1\n", {"group": ""}, "got ''"),
    "packed": (gzip.compress(b"text,y\n" + b"x,1\n" * 99)[:-20], {"end": ".csv.gz"}, "truncated"),
    "ending": ("text,y\n", {"end": ".txt"}, r"path: .*\.csv.*\.tsv.*\.jsonl"),
    "no JSON": ('{"text": "x", "y": 1}\n{"text"', {"end": ".jsonl"}, r"t\.jsonl.*\b2\b"),
    "key twice": ('{"text": "x", "y": 1, "y": 0}\n', {"end": ".jsonl"}, r"t\.jsonl"),
    "missing label": (
        '{"text": "x", "y": "a"}\n{"text": "x", "y": "NA"}\n', {"end": ".jsonl"},
        r"\b2\b.*'y'.*got 'NA'",
    ),
    "truths": (
        '{"text": "x", "y": true}\n{"text": "x", "y": 2}\n', {"end": ".jsonl"},
        r"got True.*\b2\b",
    ),
    "spaces": ("text, y\nx,1\n", {}, r"t\.csv 'y'"),
    "no object": ("[1, 2]\n", {"end": ".jsonl"}, r"\b1\b.*JSON"),
    "null": ('{"text": "x", "y": null}\n', {"end": ".jsonl"}, r"t\.jsonl.*\b1\b"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "options", "message"), WRONG_TABLES.values(), ids=WRONG_TABLES)
def test_wrong_tables_are_refused_in_one_sentence(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    options = dict(options)
    is_binary = isinstance(content, bytes)  # damaged content is bytes, not text
    path = tmp_path / f"t{options.pop('end', '.csv')}"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(rm.InputError, match=message) as caught:
        rm.Task.from_csv(path, **{"input": "text", "label": "y", **options})
    assert "\n" not in str(caught.value)
    assert is_binary or "fresh copy" not in str(caught.value)


def test_a_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(rm.InputError, match="path:"):
        rm.Task.from_csv(tmp_path / "none.csv", input="a", label="b")
    with pytest.raises(rm.InputError, match="path:"):
        rm.Task.from_folder(tmp_path / "none")
    with pytest.raises(rm.InputError, match=r"data: .*--data"):
        load_task("csv", input="a", label="b")


# Folders


def arrays(count: int, first: int = 0) -> dict[str, Any]:
    x = np.arange(first, first + 6 * count).reshape(count, 6)
    return {"x": x, "y": np.arange(count) % 2}


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(rm.InputError, match=r": .*\(Permission denied\)"):
        rm.Task.from_folder(tmp_path)


def test_a_folder_of_arrays(tmp_path: Path) -> None:
    for name, count in (("train", 30), ("val", 8), ("test", 6)):
        np.savez(tmp_path / f"{name}.npz", **arrays(count, first=1000 * count))
    task = rm.Task.from_folder(tmp_path)
    assert sizes(task) == [30, 8, 6]
    assert task.split("validation")[1][0].tolist() == list(range(8006, 8012))
    assert task.split_note.startswith("train and validation and test")
    assert "%" not in task.split_note


def test_missing_validation_split_is_drawn_from_training(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "train.npz", **arrays(40), who=np.arange(40) // 4)
    np.savez_compressed(tmp_path / "test.npz", **arrays(6, first=250), who=np.arange(6) + 90)
    task = rm.Task.from_folder(tmp_path, group="who")
    assert sizes(task) == [32, 8, 6]
    assert re.search(r"\bvalidation\b[^,]* 20 %", task.split_note)
    firsts = {
        name: {int(task.split(name)[i][0][0]) // 24 for i in range(len(task.split(name)))}
        for name in ("train", "validation")
    }
    assert not firsts["train"] & firsts["validation"]  # a group has four samples of 6 tokens
    for split in ((0.8, 0.1, 0.1), 0.5, None, "part", {"train": [0]}):
        with pytest.raises(rm.InputError, match="split:"):
            rm.Task.from_folder(tmp_path, split=split, group="who")
    for same in ([0.6, 0.2, 0.2], np.array([0.6, 0.2, 0.2])):
        assert sizes(rm.Task.from_folder(tmp_path, split=same, group="who")) == [32, 8, 6]


def test_folder_of_json_lines_is_split(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"word {i}", "label": i / 7}) for i in range(20)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    task = rm.Task.from_folder(tmp_path, split=(0.5, 0.25, 0.25))
    assert (sizes(task), task.metric) == ([10, 5, 5], "rmse")


INTS, FLOATS = np.arange(80).reshape(20, 4), np.linspace(0, 1, 80).reshape(20, 4)
CLASSES = np.arange(20) % 2
DIFFERENT_PARTS = {
    "pixels": ("x", INTS.astype(np.uint8).reshape(20, 2, 2, 1), FLOATS.reshape(20, 2, 2, 1)),
    "tokens": ("x", INTS, FLOATS),
    "numbers": ("x", FLOATS.astype(np.float32), INTS),
    "classes": ("y", CLASSES, CLASSES / 2),
    "bools": ("y", CLASSES == 0, CLASSES),
    "texts": ("y", CLASSES, np.array(["a", "b"] * 10)),
}


@pytest.mark.parametrize(("name", "train", "test"), DIFFERENT_PARTS.values(), ids=DIFFERENT_PARTS)
@pytest.mark.parametrize("form", ["npz", "jsonl"])
def test_parts_of_unlike_types_are_not_joined(
    tmp_path: Path, name: str, train: Any, test: Any, form: str
) -> None:
    for split, values in (("train", train), ("test", test)):
        columns = {"x": INTS, "y": CLASSES, name: values}
        if form == "npz":
            np.savez(tmp_path / f"{split}.npz", **columns)
            continue
        rows = zip(columns["x"].tolist(), columns["y"].tolist(), strict=True)
        lines = [json.dumps({"x": x, "y": y}) for x, y in rows]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    message = rf"{name}: .*\w+.*train\.{form}.*\w+.*test\.{form}"
    with pytest.raises(rm.InputError, match=message):
        rm.Task.from_folder(tmp_path, input="x", label="y")


def test_parts_may_mix_integers_and_floats(tmp_path: Path) -> None:
    """Mix integers of several widths, and let `kind` mark the labels as numbers."""
    np.savez(tmp_path / "train.npz", x=INTS.astype(np.uint8), y=np.arange(20) / 3)
    np.savez(tmp_path / "test.npz", x=INTS + 99, y=np.arange(20))
    task = rm.Task.from_folder(tmp_path, kind="regression")
    assert (sizes(task), task.metric) == ([16, 4, 20], "rmse")
    lines = {"train": [[0.5, 1], [2, 3]] * 15, "test": [[0.25, 7], [2.5, 8]] * 3}
    (tmp_path / "tables").mkdir()
    for name, values in lines.items():
        rows = [json.dumps({"x": [*x, i / 2, len(name)], "y": i % 2}) for i, x in enumerate(values)]
        (tmp_path / "tables" / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    floats = rm.Task.from_folder(tmp_path / "tables", input="x", label="y")
    assert floats.input_kind == "vectors"


WRONG_FOLDERS: dict[str, tuple[dict[str, bytes], dict[str, Any], str]] = {
    "no train": ({"test.npz": b""}, {}, r"test\.npz"),
    "two kinds": ({"train.npz": b"", "test.jsonl": b""}, {}, r"test\.jsonl"),
    "two of one": (
        {"val.npz": b"", "dev.npz": b""},
        {},
        "got dev.npz",
    ),
    "no archive": ({"train.npz": b"PK\x03\x04 nothing"}, {}, r"train\.npz:"),
    "no images": ({}, {}, "found no"),
    "option": ({}, {"input": "x"}, "image_folder 'input'"),
}


@pytest.mark.parametrize(("files", "options", "message"), WRONG_FOLDERS.values(), ids=WRONG_FOLDERS)
def test_wrong_folders_are_refused(
    tmp_path: Path, files: dict[str, bytes], options: dict[str, Any], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(rm.InputError, match=message):
        rm.Task.from_folder(tmp_path, **options)


def test_images_of_different_sizes_in_the_parts_are_reported(tmp_path: Path) -> None:
    for name, size in (("train", 4), ("test", 8)):
        x = np.zeros((30, size, size), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(30) % 2)
    words = r"got \(4, 4\).*train\.npz.*\(8, 8\).*test\.npz"
    with pytest.raises(rm.InputError, match=words):
        rm.Task.from_folder(tmp_path)


def test_one_array_is_not_an_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((30, 4)))
    with pytest.raises(rm.InputError, match=r"x\.npy: .*\.npz"):
        load_task("npz", data=str(tmp_path / "x.npy"))


OTHERS = (
    "testing.csv", "eval.csv", "test_v2.csv", "test.csv.zip", "test.xlsx", "Test.CSV", "test/",
)  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_unrecognised_data_is_refused(tmp_path: Path, other: str) -> None:
    """Check the refusal, because otherwise a test split would be drawn from training samples."""
    (tmp_path / "train.csv").write_text(table(40), encoding="utf-8")
    for name in ("README.md", "._test.csv"):  # not data: files of people and systems
        (tmp_path / name).write_text("nothing", encoding="utf-8")
    assert sizes(rm.Task.from_folder(tmp_path)) == [24, 8, 8]
    path = tmp_path / other
    path.mkdir() if other.endswith("/") else path.write_text(table(9), encoding="utf-8")
    message = f"got {path.name}"
    with pytest.raises(rm.InputError, match=message):
        rm.Task.from_folder(tmp_path)
    (tmp_path / "train.csv").unlink()
    if not other.endswith("/"):
        with pytest.raises(rm.InputError, match=message):
            rm.Task.from_folder(tmp_path)


def test_names_of_splits_in_capitals(tmp_path: Path) -> None:
    for name, count in (("Train", 30), ("VAL", 8), ("Test", 6)):
        (tmp_path / f"{name}.csv").write_text(table(count, name), encoding="utf-8")
    assert sizes(rm.Task.from_folder(tmp_path)) == [30, 8, 6]


def table(count: int, word: str = "text") -> str:
    rows = "".join(f"{word} {i},{'odd' if i % 2 else 'even'}\n" for i in range(count))
    return f"text,label\n{rows}"


def test_pickled_objects_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=np.array([{}] * 9, dtype=object), y=np.arange(9) % 2)
    with pytest.raises(rm.InputError, match=r"train\.npz: .*pickled objects") as caught:
        rm.Task.from_folder(tmp_path)
    assert "damaged" not in str(caught.value)
    np.savez(tmp_path / "train.npz", **arrays(20))
    with pytest.raises(rm.InputError, match=r"train\.npz 'labels'"):
        rm.Task.from_folder(tmp_path, label="labels")


SYSTEM = {
    errno.EACCES: "permission",
    errno.EISDIR: "folder",
    errno.ENOSPC: "space",
}


@pytest.mark.parametrize("number", SYSTEM)
@pytest.mark.parametrize("name", ["t.csv", "t.npz"])
def test_permission_errors_are_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"text,y\n")

    def refuse(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(safe_readers, "check_regular", refuse)
    with pytest.raises(rm.InputError) as caught:
        load_task(path.suffix[1:], data=str(path), input="text", label="y")
    assert re.match(rf"{path}: .*\b{SYSTEM[number]}\b", str(caught.value))
    assert "damaged" not in str(caught.value)


# Tasks of the registry


def test_task_registry_reads_the_given_data(reviews: Path, tmp_path: Path) -> None:
    task = load_task("csv", data=str(reviews), input="note", label="verdict", split_seed=5)
    assert task.options["data"] == "wine.csv"
    assert task.options["split_seed"] == 5
    assert "seed 5" in task.split_note
    below = load_task("csv", data_dir=tmp_path, data="wine.csv", input="cellar,price", label="cost")
    assert below.metric == "rmse"
    np.savez(tmp_path / "a.npz", **arrays(20))
    assert sizes(load_task("npz", data=str(tmp_path / "a.npz"))) == [12, 4, 4]
    with pytest.raises(rm.InputError, match=r"\.jsonl.*jsonl.*got wine\.csv"):
        load_task("jsonl", data=str(reviews), input="note", label="verdict")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(rm.InputError, match=r"\.csv.*\.tsv.*a\.parquet"):
        load_task("csv", data=str(tmp_path / "a.parquet"), input="note", label="verdict")
    with pytest.raises(rm.InputError, match=r"label: .*--label"):
        load_task("csv", data=str(reviews), input="note")
    with pytest.raises(rm.InputError, match="label:"):
        load_task("csv", data=str(reviews), input="note", label=["verdict"])
    for name in ("csv", "jsonl", "npz", "folder"):
        assert not task_status(name).available
        assert task_card(name).options["kind"] == "auto"
