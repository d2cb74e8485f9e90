"""Tests of IMDB: every format, bytes as tokens, validation from training reviews."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged_files import assert_names_cut_file, assert_names_file, pack

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task, task_status
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.text import text
from rifflemix.lab.tasks.text.encoder import review_words

PER_CLASS = 30
Reviews = dict[str, list[tuple[str, int]]]


@pytest.fixture
def reviews(monkeypatch: pytest.MonkeyPatch) -> Reviews:
    """Build a tiny IMDB, sorted by label like the original.

    The last text of each class repeats its first text.
    """
    monkeypatch.setattr(text, "_TEXTS_PER_CLASS", PER_CLASS)
    rng = np.random.default_rng(2)

    def review(part: str, label: int, number: int) -> str:
        words = rng.choice(["good", "bad", "plot", "café", "<br />", "…"], 3 + number % 7)
        return f"{part} {label} {number}: {' '.join(words)}"

    result: Reviews = {}
    for part in ("train", "test"):
        rows = [(review(part, y, n), y) for y in (0, 1) for n in range(PER_CLASS - 1)]
        result[part] = sorted([*rows, rows[0], rows[PER_CLASS - 1]], key=lambda row: row[1])
    return result


def write_lines(data: Path, reviews: Reviews, write: Callable[[Path, list[Any]], None]) -> None:
    for part, rows in reviews.items():
        write(data / f"imdb_{part}.jsonl.xz", [[label, review, 5] for review, label in rows])


def files_of(reviews: Reviews) -> dict[str, bytes]:
    return {
        f"aclImdb/{part}/{('neg', 'pos')[label]}/{number}_{3 + label * 5}.txt": review.encode()
        for part, rows in reviews.items()
        for number, (review, label) in enumerate(rows)
    }


def write_folder(data: Path, reviews: Reviews) -> None:
    for name, content in files_of(reviews).items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)


def write_tar(data: Path, reviews: Reviews) -> None:
    extra = {"aclImdb/train/unsup/0_0.txt": b"unlabelled", "aclImdb/README": b"x"}
    pack(data / "aclImdb_v1.tar.gz", {**extra, **files_of(reviews)})


def texts(task: Task, name: str) -> list[tuple[str, int]]:
    return [
        (bytes((tokens - 1).tolist()).decode(errors="replace"), label)
        for tokens, label in (task.split(name)[index] for index in range(len(task.split(name))))
    ]


@pytest.fixture
def task(data: Path, reviews: Reviews, write_lines_xz: Callable[..., None]) -> Task:
    write_lines(data, reviews, write_lines_xz)
    return load_task("text", data_dir=data)


def test_all_reviews_are_read_and_shuffled(task: Task, reviews: Reviews) -> None:
    assert (task.vocab_size, task.num_classes, task.max_length) == (257, 2, 4096)
    assert sorted(texts(task, "train") + texts(task, "validation")) == sorted(reviews["train"])
    assert sorted(texts(task, "test")) == sorted(reviews["test"])
    for name in SPLITS:
        labels = [label for _, label in texts(task, name)]
        assert labels != sorted(labels)


def test_validation_is_stratified_and_disjoint(task: Task) -> None:
    validation, train = texts(task, "validation"), texts(task, "train")
    assert sorted(label for _, label in validation) == [0, 0, 0, 1, 1, 1]
    assert not set(validation) & set(train)


def test_tokens_are_bytes_plus_one(task: Task) -> None:
    tokens, _ = task.split("train")[0]
    assert tokens.dtype == torch.int64
    assert tokens.min() >= 1
    review = texts(task, "train")[0][0]
    assert (tokens - 1).tolist() == list(review.encode())


@pytest.mark.parametrize("place", ["folder", "folder itself", "tar", "hub"])
def test_all_sources_give_the_same_splits(
    place: str, task: Task, reviews: Reviews, tmp_path: Path, put_on_hub: Callable[..., Any]
) -> None:
    other: Path | None = tmp_path / "other"
    assert other is not None
    other.mkdir()
    if place == "tar":
        write_tar(other, reviews)
    elif place == "hub":
        other = None
        fetched = {
            part: {"text": [row[0] for row in rows], "label": [row[1] for row in rows]}
            for part, rows in reviews.items()
        }
        put_on_hub("stanfordnlp/imdb", fetched)
    else:
        write_folder(other, reviews)
        other = other / "aclImdb" if place == "folder itself" else other
    same = load_task("text", data_dir=other)
    assert same.fingerprint() == task.fingerprint()
    assert same.data_source != task.data_source


def test_long_reviews_are_truncated(data: Path, task: Task) -> None:
    short = load_task("text", data_dir=data, max_length=12)
    for index in range(len(short.split("train"))):
        tokens, label = short.split("train")[index]
        whole, same = task.split("train")[index]
        assert torch.equal(tokens, whole[:12])
        assert label == same
    assert short.fingerprint() != task.fingerprint()


def test_file_missing_from_the_folder(data: Path, reviews: Reviews) -> None:
    write_folder(data, reviews)
    next((data / "aclImdb/test/pos").iterdir()).unlink()
    with pytest.raises(InputError, match=r"aclImdb: .*\b29\b.*test/pos.*\b30\b"):
        load_task("text", data_dir=data)


@pytest.mark.parametrize("keep", [0.4, 0.97], ids=str)
def test_truncated_tar(data: Path, reviews: Reviews, keep: float) -> None:
    write_tar(data, reviews)
    assert_names_cut_file("text", data, data / "aclImdb_v1.tar.gz", keep)


def test_truncated_lines(data: Path, reviews: Reviews, write_lines_xz: Callable[..., None]) -> None:
    write_lines(data, reviews, write_lines_xz)
    assert_names_cut_file("text", data, data / "imdb_test.jsonl.xz", -20)


def test_one_of_two_files_is_missing(
    data: Path, reviews: Reviews, write_lines_xz: Callable[..., None]
) -> None:
    write_lines(data, reviews, write_lines_xz)
    (data / "imdb_train.jsonl.xz").unlink()
    assert_names_file("text", data, "imdb_train.jsonl.xz:")
    assert not task_status("text", data).available


@pytest.mark.parametrize(
    ("row", "message"),
    [
        pytest.param([2, "fine", 5], r"\b61\b.*\b2\b.*\b0\b.*\b1\b", id="label"),
        pytest.param([1, "", 5], r"\b61\b", id="empty"),
        pytest.param(["pos"], r"\b61\b", id="short"),
        pytest.param([1, 7, 5], r"\b61\b", id="no text"),
        pytest.param({"label": 1}, r"\b61\b", id="object"),
    ],
)
def test_invalid_rows_are_refused(
    data: Path,
    reviews: Reviews,
    write_lines_xz: Callable[..., None],
    row: object,
    message: str,
) -> None:
    write_lines(data, reviews, write_lines_xz)
    rows = [[label, review, 5] for review, label in reviews["train"]]
    write_lines_xz(data / "imdb_train.jsonl.xz", [*rows, row])
    with pytest.raises(InputError, match=rf"imdb_train\.jsonl\.xz: .*{message}"):
        load_task("text", data_dir=data)


@pytest.mark.parametrize("part", ["train", "test"])
def test_files_that_were_cut_but_are_whole_files_are_refused(
    data: Path, reviews: Reviews, write_lines_xz: Callable[..., None], part: str
) -> None:
    reviews[part] = reviews[part][:-1]
    write_lines(data, reviews, write_lines_xz)
    with pytest.raises(InputError, match=rf"imdb_{part}.*\b29\b.*{part}/pos.*\b30\b"):
        load_task("text", data_dir=data)


def test_validation_contains_no_test_review(
    data: Path, reviews: Reviews, write_lines_xz: Callable[..., None]
) -> None:
    reviews["test"] = [*reviews["train"][:15], *reviews["test"][15:45], *reviews["train"][45:]]
    write_lines(data, reviews, write_lines_xz)
    task = load_task("text", data_dir=data)
    validation = texts(task, "validation")
    assert not set(validation) & set(texts(task, "test"))
    dropped = 6 - len(validation)
    assert dropped > 0
    assert re.search(rf"\bvalidation\b[^;]*\b{dropped}\b[^;]*\btest\b", task.split_note)
    assert len(task.split("train")) == 54
    shared = sum(review in set(texts(task, "test")) for review in texts(task, "train"))
    assert re.search(rf"; {shared} training [^;]*\btest\b", task.split_note)
    write_lines(data, reviews | {"test": reviews["test"][15:45] * 2}, write_lines_xz)
    assert not re.search(r"; \d+ training ", load_task("text", data_dir=data).split_note)


@pytest.mark.slow
def test_real_files_are_read(shared_data: Path) -> None:
    task = load_task("text", data_dir=shared_data)
    counts = {
        name: np.bincount([label for _, label in texts(task, name)]).tolist() for name in SPLITS
    }
    assert counts == {
        "train": [11250, 11250], "validation": [1237, 1247], "test": [12500, 12500]
    }  # fmt: skip
    assert re.search(r"\bvalidation\b[^;]*\b16\b[^;]*; 107 training ", task.split_note)
    whole = load_task("text", data_dir=shared_data, max_length=20_000)
    assert not set(texts(whole, "validation")) & set(texts(whole, "train"))
    assert not set(texts(whole, "validation")) & set(texts(whole, "test"))
    labels = [task.split("train")[index][1] for index in range(200)]
    assert 60 < sum(labels) < 140


def test_words_are_numbered_by_frequency(
    data: Path, reviews: Reviews, write_lines_xz: Callable[..., None]
) -> None:
    """Check ids by frequency in training reviews, the cut at max_length, and rows as for bytes."""
    write_lines(data, reviews, write_lines_xz)
    as_bytes = load_task("text", data_dir=data)
    options = {"level": "word", "vocab_size": 9, "max_length": 8}
    task = load_task("text", **options, data_dir=data)
    counts = Counter(word for review, _ in texts(as_bytes, "train") for word in words_of(review))
    known = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:7]]
    assert task.vocab_size == 9
    for name in SPLITS:
        for index, (review, label) in enumerate(texts(as_bytes, name)):
            ids, found = task.split(name)[index]
            expected = [known.index(w) + 2 if w in known else 1 for w in words_of(review)]
            assert ids.tolist() == expected[:8]
            assert found == label


def words_of(review: str) -> list[str]:
    return review.replace("<br />", " ").replace(":", " : ").split()


def test_words_and_marks() -> None:
    review = "It's GOOD.<br /><br/>Don\u2019t 'miss' caf\xe9_2, no? n\xb0 1"
    assert review_words(review).split() == [
        *("it's", "good", ".", "don", "\u2019", "t", "'", "miss", "'", "caf\xe9", "_", "2", ","),
        *("no", "?", "n", "\xb0", "1"),
    ]


def test_words_are_kept(
    data: Path,
    reviews: Reviews,
    write_lines_xz: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_lines(data, reviews, write_lines_xz)
    options = {"level": "word", "vocab_size": 50}
    first = load_task("text", **options, data_dir=data)
    assert 9 < first.vocab_size <= 50
    monkeypatch.setattr(text, "encode_reviews", lambda *_: pytest.fail("encoded again"))
    again = load_task("text", **options, data_dir=data)
    assert [s.digest() for s in again.splits.values()] == [
        s.digest() for s in first.splits.values()
    ]


@pytest.mark.parametrize(
    ("option", "value"), [("level", "character"), ("vocab_size", 2), ("vocab_size", 2.5)]
)
def test_wrong_options_are_refused(
    option: str, value: object, data: Path, reviews: Reviews, write_lines_xz: Callable[..., None]
) -> None:
    write_lines(data, reviews, write_lines_xz)
    with pytest.raises(InputError, match=option):
        load_task("text", data_dir=data, **{"level": "word", option: value})
