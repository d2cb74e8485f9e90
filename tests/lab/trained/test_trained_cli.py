"""The commands predict and export."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_inputs import CASES
from trained_runs import images, ragged, texts, train_into, vectors

import rifflemix as rm
from command_line import Cli


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on a table with a column of texts."""
    folder = tmp_path_factory.mktemp("reviews")
    lines = ["review,stars", *(f'"{text}, and",{y}' for text, y in zip(*texts(), strict=True))]
    (folder / "train.csv").write_text("\n".join(lines))
    task = rm.Task.from_csv(folder / "train.csv", input="review", label="stars")
    return train_into(folder / "run", task)


NEW = ['good, "1"', "dull", "bad 3"]


def new_file(folder: Path, name: str, column: str) -> Path:
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps({"id": 1, column: text}) + "\n" for text in NEW))
    elif name.endswith(".txt"):
        path.write_text("".join(f"{text}\n\n" for text in NEW))  # blank lines are left out
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([("id", column), *(("1", text) for text in NEW)])
    return path


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("new.csv", "review", ()),
        ("new.csv", "text", ("--column", "text")),
        ("new.jsonl", "review", ()),
        ("new.txt", "", ()),
    ],
)
def test_predictions_of_texts(
    reviews: Path, tmp_path: Path, cli: Cli, name: str, column: str, words: Any
) -> None:
    data = new_file(tmp_path, name, column)
    ended = cli("predict", reviews, "--data", data, *words, "--out", tmp_path / "out.csv")
    assert (ended.code, ended.err) == (0, "")
    run = rm.load_run(reviews)
    rows = rows_of(tmp_path / "out.csv")
    assert [row["prediction"] for row in rows] == run.predict(NEW).tolist()
    lines = {".csv": [2, 3, 4], ".jsonl": [1, 2, 3], ".txt": [1, 3, 5]}[Path(name).suffix]
    assert [int(row["line"]) for row in rows] == lines
    shares = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(shares, run.predict_proba(NEW).max(1), atol=1e-5)


def test_json_output(reviews: Path, tmp_path: Path, cli: Cli) -> None:
    data = new_file(tmp_path, "new.csv", "review")
    ended = cli("predict", reviews, "--data", data, "--out", tmp_path / "out.csv", "--json")
    printed = json.loads(ended.out)
    assert printed["predictions"] == sum(printed["classes"].values()) == 3
    assert set(printed["classes"]) <= {"yes", "no"}


def test_columns_of_numbers(tmp_path: Path, cli: Cli) -> None:
    rows = vectors()[0][:, :3, 0]
    cells = [[f"{value:.6f}" for value in (*row, row.sum())] for row in rows]
    lines = ["a,b,c,y", *map(",".join, cells)]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    task = rm.Task.from_csv(tmp_path / "train.csv", input=["a", "b", "c"], label="y")
    run = train_into(tmp_path / "run", task)
    ended = cli("predict", run, "--data", tmp_path / "train.csv", "--out", tmp_path / "out.csv")
    assert ended.code == 0, ended.err
    found = [float(row["prediction"]) for row in rows_of(tmp_path / "out.csv")]
    numbers = np.array([[float(value) for value in row[:3]] for row in cells])
    np.testing.assert_allclose(found, rm.load_run(run).predict(numbers[..., None]), rtol=1e-6)


def test_arrays_and_images(tmp_path: Path, cli: Cli) -> None:
    from PIL import Image

    x, y = images()
    run = train_into(tmp_path / "run", rm.Task.from_arrays(x, y))
    np.savez(tmp_path / "new.npz", x=x[:3])
    (tmp_path / "photos").mkdir()
    for index in range(3):
        Image.fromarray(x[index]).save(tmp_path / "photos" / f"{index}.png")
    wanted = rm.load_run(run).predict(x[:3]).tolist()
    table = "\n".join(["image", *(f"photos/{index}.png" for index in range(3))])
    (tmp_path / "paths.csv").write_text(table)
    for data, key, names in (
        ("new.npz", "row", ["0", "1", "2"]),
        ("photos", "file", ["0.png", "1.png", "2.png"]),
        ("photos/1.png", "file", ["1.png"]),
        ("paths.csv", "line", ["2", "3", "4"]),
    ):
        ended = cli("predict", run, "--data", tmp_path / data, "--out", tmp_path / "out.csv")
        assert ended.code == 0, ended.err
        rows = rows_of(tmp_path / "out.csv")
        assert [row[key] for row in rows] == names
        expected = wanted[1:2] if len(names) == 1 else wanted
        assert [row["prediction"] for row in rows] == expected


def test_ragged_sequences(tmp_path: Path, cli: Cli) -> None:
    x, y = ragged()
    run = train_into(tmp_path / "run", rm.Task.from_arrays(x, y))
    lines = "".join(json.dumps({"ids": row.tolist()}) + "\n" for row in x[:5])
    (tmp_path / "new.jsonl").write_text(lines)
    padded = np.zeros((5, 12), int)
    for index, row in enumerate(x[:5]):
        padded[index, : len(row)] = row
    np.savez(tmp_path / "new.npz", x=padded, lengths=[len(row) for row in x[:5]])
    wanted = rm.load_run(run).predict(x[:5])
    for name in ("new.jsonl", "new.npz"):
        ended = cli("predict", run, "--data", tmp_path / name, "--out", tmp_path / "out.csv")
        assert ended.code == 0, ended.err
        rows = rows_of(tmp_path / "out.csv")
        np.testing.assert_allclose([float(row["prediction"]) for row in rows], wanted)
        assert "probability" not in rows[0]


def test_sequences_and_pairs(tmp_path: Path, cli: Cli) -> None:
    task = rm.tasks.load_task("sort", **CASES["sort"].options)
    run = train_into(tmp_path / "sort", task, model="seq2seq")
    (tmp_path / "new.jsonl").write_text('{"x": [3, 1]}\n{"x": [0]}\n')
    ended = cli("predict", run, "--data", tmp_path / "new.jsonl", "--out", tmp_path / "out.csv")
    assert ended.code == 0, ended.err
    written = [" ".join(map(str, row)) for row in rm.load_run(run).predict([[3, 1], [0]])]
    assert [row["prediction"] for row in rows_of(tmp_path / "out.csv")] == written


def wrong(reviews: Path, folder: Path) -> dict[str, tuple[list[Any], str]]:
    table = new_file(folder, "new.csv", "text")
    (folder / "empty.csv").write_text("review\n")
    (folder / "long.csv").write_text(f"review\n{'x' * 99}\n")
    (folder / "other.pdf").write_text("")
    data = "--data"
    return {
        "no run": ([folder, data, table], "folder"),
        "no file": ([reviews, data, folder / "none.csv"], "none.csv"),
        "no column": ([reviews, data, table], "review"),
        "unknown column": ([reviews, data, table, "--column", "texts"], "text"),
        "no rows": ([reviews, data, folder / "empty.csv"], "empty.csv"),
        "too long": ([reviews, data, folder / "long.csv"], "input 0"),
        "other file": ([reviews, data, folder / "other.pdf"], ".pdf"),
        "unknown mixer": ([reviews, data, table, "--mixer", "csp"], "mixer"),
    }


@pytest.mark.parametrize("out", ["new.csv", "out.xlsx", "out"])
def test_predictions_need_a_new_csv_file(reviews: Path, tmp_path: Path, cli: Cli, out: str) -> None:
    data = new_file(tmp_path, "new.csv", "review")
    content = data.read_bytes()
    ended = cli("predict", reviews, "--data", data, "--out", tmp_path / out)
    assert (ended.code, "--out" in ended.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]
    assert data.read_bytes() == content


@pytest.mark.parametrize(
    "case",
    ["no run", "no file", "no column", "unknown column", "no rows", "too long", "other file",
     "unknown mixer"],
)  # fmt: skip
def test_wrong_arguments_are_one_line(reviews: Path, tmp_path: Path, cli: Cli, case: str) -> None:
    words, named = wrong(reviews, tmp_path)[case]
    ended = cli("predict", *words, "--out", tmp_path / "out.csv")
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert named in ended.err
    assert not (tmp_path / "out.csv").exists()


def test_export_errors_are_one_sentence(reviews: Path, tmp_path: Path, cli: Cli) -> None:
    for words in ([tmp_path, "--out", "x.onnx"], [reviews, "--out", tmp_path]):
        ended = cli("export", *words)
        assert ended.code == 2
        assert ended.err.count("\n") == 1


@pytest.mark.slow
def test_exported_model_is_written(reviews: Path, tmp_path: Path, cli: Cli) -> None:
    ended = cli("export", reviews, "--out", tmp_path / "model.onnx", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["files"] == [str(tmp_path / "model.onnx")]
    assert (tmp_path / "model.onnx").stat().st_size > 1000
