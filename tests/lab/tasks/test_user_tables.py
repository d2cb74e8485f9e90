"""Tests of labels, numbers and quotes in user tables: clear cases are read, others refused."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.lab.tasks import load_task

SPLITS = ("train", "validation", "test")


def table(path: Path, labels: list[str]) -> Path:
    rows = "".join(f"{path.stem} {i},{label}\n" for i, label in enumerate(labels))
    path.write_text(f"text,y\n{rows}", encoding="utf-8")
    return path


def read(path: Path, **options: Any) -> rm.Task:
    return rm.Task.from_csv(path, **{"input": "text", "label": "y", **options})


def answers(task: rm.Task) -> dict[str, Any]:
    """Map the text of every sample to its label."""
    samples = [task.split(name)[i] for name in SPLITS for i in range(len(task.split(name)))]
    return {bytes((x.numpy() - 1).astype("uint8")).decode(): y for x, y in samples}


# Labels


@pytest.mark.parametrize("kind", ["auto", "classification", "regression"])
@pytest.mark.parametrize("mark", ["NA", "N/A", "nan", "NULL", "None", "<NA>", "#N/A", "?", " "])
@pytest.mark.parametrize("others", [["0", "1"], ["good", "bad"], ["0.5", "1.5"]])
def test_missing_labels_are_not_classes(
    tmp_path: Path, others: list[str], mark: str, kind: str
) -> None:
    path = table(tmp_path / "t.csv", [*others * 10, mark, *others])
    with pytest.raises(rm.InputError, match=r"t\.csv.*\b22\b.*'y'"):
        read(path, kind=kind)


KINDS: dict[str, tuple[list[str], str, int | str]] = {
    "whole numbers": (["0", "1", "-3"], "auto", 3),
    "spaces around them": (["0", " 0", "1 "], "auto", 2),
    "leading zeros": (["01", "1"], "auto", 2),
    "underscores": (["1_0", "10"], "auto", 2),
    "signs": (["+1", "-1"], "auto", 2),
    "codes that look like powers": (["1E2", "3E5"], "auto", 2),
    "more digits than 64 bits": (["1" * 30, "2" * 5000], "auto", 2),
    "points": (["0.5", "1", "2e-05"], "auto", "rmse"),
    "both zeros": (["0.0", "-0.0", "1.5"], "auto", "rmse"),
    "chapters": (["1.1", "1.10", "2.0"], "classification", 3),
    "one number twice": (["1.1", "1.10", "2.0"], "regression", "rmse"),
    "powers": (["1E2", "3E5"], "regression", "rmse"),
    "a few names": (["1", "2", "3", "4+"], "classification", 4),
    "names, most of them": (["1", "b", "c"], "auto", 3),
    "several labels": (["1,2", "3"], "classification", 2),
}


@pytest.mark.parametrize(("labels", "kind", "expected"), KINDS.values(), ids=KINDS)
def test_types_of_labels(tmp_path: Path, labels: list[str], kind: str, expected: int | str) -> None:
    path = table(tmp_path / "t.csv", [f'"{label}"' for label in labels] * 10)
    task = read(path, kind=kind)
    assert expected == (task.metric if isinstance(expected, str) else task.num_classes)


MIXED: dict[str, tuple[list[str], str, str]] = {
    "a word among numbers": (["0.5", "1.5", "none"], "auto", "got 'none'; .* 'classification'"),
    "a word for regression": (["0.5", "1.5", "none"], "regression", "got 'none'$"),
    "an underscore": (["0.5", "1.5", "1_0"], "regression", "got '1_0'$"),
    "commas alone": (["0,5", "1,5", "2,5"], "auto", "got '0,5'"),
    "commas among whole numbers": (["1", "2", "2,5"], "auto", "got '2,5'"),
    "commas for regression": (["1", "2", "2,5"], "regression", "got '2,5'"),
}


@pytest.mark.parametrize(("labels", "kind", "message"), MIXED.values(), ids=MIXED)
def test_non_numeric_label_is_named(
    tmp_path: Path, labels: list[str], kind: str, message: str
) -> None:
    path = table(tmp_path / "t.csv", [f'"{label}"' for label in labels] * 10)
    line = 2 if labels[0] == "0,5" else 4
    with pytest.raises(rm.InputError, match=rf"t\.csv.*{line}.*{message}"):
        read(path, kind=kind)


def test_different_texts_of_one_number_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", ["1.1", "1.2", "1.10"] * 5)
    with pytest.raises(
        rm.InputError,
        match=r"\b4\b.*got '1\.1'.*'1\.10'",
    ):
        read(path)


def test_labels_of_all_files_of_a_folder_have_one_type(tmp_path: Path) -> None:
    """Check one type for all files; labels of the test file alone are whole numbers."""
    table(tmp_path / "train.csv", ["0.5", "1", "2"] * 10)
    for name in ("validation", "test"):
        table(tmp_path / f"{name}.csv", ["1", "2"] * 4)
    task = rm.Task.from_folder(tmp_path, label="y")
    assert task.metric == "rmse"
    assert {task.split("test")[i][1] for i in range(8)} == {1.0, 2.0}
    table(tmp_path / "test.csv", ["1", "NA"])
    with pytest.raises(rm.InputError, match=r"test\.csv.*\b3\b"):
        rm.Task.from_folder(tmp_path, label="y")


def test_non_numeric_text_is_named_with_its_sample() -> None:
    y = ["0.1", "0.2"] * 6
    y[7] = "many"
    with pytest.raises(rm.InputError, match=r"got 'many'.*\b7\b"):
        rm.Task.from_arrays([[1.0, 2.0]] * 12, y, kind="regression")


# Numbers as inputs


@pytest.mark.parametrize("values", [range(30), [i / 4 for i in range(30)]])
def test_column_of_numbers_is_not_text(tmp_path: Path, values: Any) -> None:
    rows = "".join(f"{value},{i % 2}\n" for i, value in enumerate(values))
    path = tmp_path / "t.csv"
    path.write_text(f"v,y\n{rows}", encoding="utf-8")
    with pytest.raises(
        rm.InputError,
        match=r"'v'.*--input.*\['v'\]",
    ):
        load_task("csv", data=str(path), input="v", label="y")
    vectors = load_task("csv", data=str(path), input="v,", label="y")
    assert (vectors.input_kind, vectors.max_length, vectors.num_features) == ("vectors", 1, 1)
    assert rm.Task.from_csv(path, input=["v"], label="y").input_kind == "vectors"
    path.rename(tmp_path / "train.csv")
    folder = load_task("folder", data=str(tmp_path), input="v,", label="y")
    assert folder.input_kind == "vectors"


def test_digits_that_are_not_numbers_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{i:06b},{bin(i).count('1') % 2}\n" for i in range(40))
    path.write_text(f"text,y\n{rows}", encoding="utf-8")
    assert read(path).vocab_size == 257


# Quotes


def tsv(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["y\ttext", *rows]) + "\n", encoding="utf-8")
    return path


def test_quotes_in_a_tsv_do_not_join_rows(tmp_path: Path) -> None:
    rows = [f"{i % 2}\ttext {i}" for i in range(80)]
    rows[20], rows[60] = '0\t"text 20', '0\ttext 60"'
    rows[70] = '0\t"text" 70'
    found = answers(read(tsv(tmp_path / "t.tsv", rows)))
    assert len(found) == 80
    assert {'"text 20', 'text 60"', '"text" 70'} <= set(found)


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("inside", ["", "\n", "\t", "\r\n"])
def test_a_tsv_that_was_written_with_quotes(tmp_path: Path, quoting: Any, inside: str) -> None:
    texts = [f'"{i}" he{inside} said' for i in range(30)]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter="\t", quoting=quoting, lineterminator="\n")
    writer.writerows([("text", "y"), *((text, i % 2) for i, text in enumerate(texts))])
    path = tmp_path / "t.tsv"
    path.write_bytes(stream.getvalue().encode())
    assert answers(read(path)) == {text: i % 2 for i, text in enumerate(texts)}


@pytest.mark.parametrize("last", ['text 60"', "text 60"], ids=["closed", "open"])
def test_a_row_of_a_tsv_that_is_too_long_is_named(tmp_path: Path, last: str) -> None:
    """Check that two stray quotes around a row do not hide the row."""
    rows = [f"{i % 2}\ttext {i}" for i in range(80)]
    rows[20], rows[40], rows[60] = '0\t"text 20', "0\ttext\t40", f"0\t{last}"
    with pytest.raises(rm.InputError, match=r"t\.tsv.*\b42\b.*\b2\b.*got 3\b"):
        read(tsv(tmp_path / "t.tsv", rows))


def test_a_quote_inside_a_field_of_a_csv_is_refused_with_its_line(tmp_path: Path) -> None:
    rows = [f"text {i},{i % 2}" for i in range(20)]
    rows[4] = '"text\n4",0'  # two lines
    rows[9] = '"hello" he said,1'
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["text,y", *rows]), encoding="utf-8")
    with pytest.raises(rm.InputError, match=r"t\.csv.*\b12\b") as caught:
        read(path)
    assert "fresh copy" not in str(caught.value)


# Rows


UNREADABLE: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "header again": (
        "t.csv", "text,y\nx,a\nz,b\ntext,y\nv,a\n", {},
        r"t\.csv.*\b4\b",
    ),
    "header again, tabs": (
        "t.tsv", "text\ty\nx\ta\ntext\ty\n", {}, r"t\.tsv.*\b3\b",
    ),
    "index": (
        "t.csv", ",text,y\n0,x,1\n", {"input": "txt"},
        r"t\.csv 'txt'.*text",
    ),
    "index, all columns": (
        "t.csv", ",text,y\n0,x,1\n", {"input": "words"}, "'words'.*''",
    ),
    "list as split": (
        "t.jsonl", '{"text": "x", "y": 1, "s": ["train"]}\n', {"split": "s"},
        r"\b1\b.*'s'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "options", "message"), UNREADABLE.values(), ids=UNREADABLE
)
def test_rows_and_columns_that_are_refused(
    tmp_path: Path, name: str, content: str, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(rm.InputError, match=message):
        read(path, **options)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_texts_in_another_encoding(tmp_path: Path, encoding: str, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    content = '{"text": "thé", "y": "a"}\n' * 2 if ending == "jsonl" else "text,y\nthé,a\n"
    path.write_text(content, encoding=encoding)
    with pytest.raises(rm.InputError, match=rf"t\.{ending}: .*UTF-8\b.*UTF-8\b"):
        read(path)


# Parts


@pytest.mark.parametrize("name", ["y", "lengths", "who"])
def test_every_part_has_one_value_per_sample(tmp_path: Path, name: str) -> None:
    """Check wrong lengths per part, although their sum equals the number of samples."""
    tokens, numbers = np.arange(80).reshape(20, 4), np.arange(20)
    for split, count in (("train", 15), ("test", 25)):
        columns = {"x": tokens, "y": numbers % 2, "lengths": numbers % 4 + 1, "who": numbers}
        columns[name] = np.resize(columns[name], count)
        np.savez(tmp_path / f"{split}.npz", **columns)  # type: ignore[arg-type] # its stubs
    with pytest.raises(rm.InputError, match=r"\b20\b.*train\.npz.*got 15\b"):
        rm.Task.from_folder(tmp_path, lengths="lengths", group="who")


@pytest.mark.parametrize("place", ["", "ant"])
def test_folder_of_images_needs_another_task(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    with pytest.raises(rm.InputError, match=r"\.npz.*image_folder"):
        load_task("folder", data=str(tmp_path))
