"""Tests of retrieval: both formats, byte pairs, batches of two sequences, refusals."""

from __future__ import annotations

import json
import lzma
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task, prepare_task, task_status

DOCUMENTS = {f"P{n}": f"paper {n} " + "äb" * n for n in range(8)}
PAIRS = {
    "train": [(1, "P0", "P1"), (0, "P0", "P2"), (1, "P3", "P1"), (0, "P5", "P4")],
    "validation": [(1, "P6", "P0"), (0, "P7", "P7")],
    "test": [(0, "P2", "P3")],
}
TSV = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
LISTS = {
    "train": "aan_pairs.train.tsv",
    "validation": "aan_pairs.valid.tsv",
    "test": "aan_pairs.test.tsv",
}


def write_tsv(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in PAIRS.items():
        lines = [
            f"{label:.1f}\t{one}\t{two}\t{DOCUMENTS[one]}\t{DOCUMENTS[two]}\n"
            for label, one, two in pairs
        ]
        (folder / TSV[split]).write_text("".join(lines), encoding="utf-8")


def write_documents(folder: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in DOCUMENTS.items())
    (folder / "aan_docs.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    for split, pairs in PAIRS.items():
        (folder / LISTS[split]).write_text(
            "".join(f"{label}\t{one}\t{two}\n" for label, one, two in pairs)
        )


def rows(task: Task, split: str) -> list[tuple[str, str, int]]:
    samples = [task.split(split)[index] for index in range(len(task.split(split)))]
    return [
        (*(bytes((part - 1).tolist()).decode() for part in pair), label) for pair, label in samples
    ]


@pytest.fixture
def task(data: Path) -> Task:
    write_tsv(data)
    return load_task("retrieval", data_dir=data)


def test_all_pairs_are_read(task: Task) -> None:
    assert re.search(r"\b100 %.*\btest\b.*\btraining\b", task.split_note)
    assert (task.num_sequences, task.input_kind, task.vocab_size) == (2, "tokens", 257)
    assert (task.num_classes, task.max_length, task.padding) == (2, 4000, True)
    for split, pairs in PAIRS.items():
        expected = [(DOCUMENTS[one], DOCUMENTS[two], label) for label, one, two in pairs]
        assert sorted(rows(task, split)) == sorted(expected)


@pytest.mark.parametrize("form", ["tsv_data", "lra_release/lra_release/tsv_data", "documents"])
def test_all_sources_give_the_same_splits(task: Task, tmp_path: Path, form: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    if form == "documents":
        write_documents(other)
    else:
        write_tsv(other / form)
    assert load_task("retrieval", data_dir=other).fingerprint() == task.fingerprint()


def test_batch_of_pairs(task: Task) -> None:
    samples = [task.split("train")[index] for index in range(4)]
    batch = task.collate(samples)
    longest = max(len(part) for pair, _ in samples for part in pair)
    assert batch["inputs"].shape == batch["key_padding_mask"].shape == (4, 2, longest)
    assert batch["inputs"].dtype == torch.int64
    assert batch["labels"].tolist() == [label for _, label in samples]
    for row, mask, (pair, _) in zip(
        batch["inputs"], batch["key_padding_mask"], samples, strict=True
    ):
        for tokens, padding, part in zip(row, mask, pair, strict=True):
            assert torch.equal(tokens[: len(part)], part)
            assert padding.tolist() == [position >= len(part) for position in range(longest)]
            assert (tokens[len(part) :] == task.pad_id).all()


def test_sequences_are_truncated_to_max_length(data: Path, task: Task) -> None:
    cut = load_task("retrieval", data_dir=data, max_length=5)
    pair, _ = cut.split("test")[0]
    assert [len(part) for part in pair] == [5, 5]
    assert cut.fingerprint() != task.fingerprint()


def test_splits_pickle_small_and_keep_their_pairs(task: Task) -> None:
    copy = pickle.loads(pickle.dumps(task.split("train")))
    assert isinstance(copy.documents.tokens.values.base, np.memmap)
    assert copy.digest() == task.split("train").digest()


def test_max_samples_keeps_the_first_samples(data: Path, task: Task) -> None:
    few = load_task("retrieval", data_dir=data, max_samples=3)
    assert {name: len(few.split(name)) for name in PAIRS} == {
        "train": 3,
        "validation": 2,
        "test": 1,
    }
    assert rows(few, "train") == rows(task, "train")[:3]
    with pytest.raises(IndexError):
        few.split("train")[3]
    assert few.options["max_samples"] == 3
    assert few.fingerprint() != task.fingerprint()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\tP0\tP1\n", r"\b5\b.*\b3\b.*\b5\b"),
        ("2\tP0\tP1\ta\tb\n", r"\b5\b.*\b2\b.*\b0\b.*\b1\b"),
        ("1\tP0\tP1\ta\t\n", r"\b5\b"),
    ],
)
def test_damaged_tsv(data: Path, line: str, message: str) -> None:
    write_tsv(data)
    with (data / TSV["train"]).open("a") as stream:
        stream.write(line)
    with pytest.raises(InputError, match=rf"new_aan_pairs\.train\.tsv: .*{message}"):
        load_task("retrieval", data_dir=data)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("aan_pairs.valid.tsv", b"1\tP0\tP9\n", r"\b1\b.*P9\b"),
        ("aan_pairs.valid.tsv", b"", "validation pair"),
        ("aan_docs.jsonl.xz", lzma.compress(b'["a", 1]\n'), r"aan_docs\.jsonl\.xz.*\b1\b"),
        (
            "aan_docs.jsonl.xz",
            lzma.compress(b'["a", "b"]\n["a", "c"]\n'),
            r"aan_docs\.jsonl\.xz.*\b2\b",
        ),
        ("aan_docs.jsonl.xz", lzma.compress(b"x" * 99)[:-8], r"aan_docs\.jsonl\.xz"),
    ],
    ids=["unknown", "empty", "number", "twice", "truncated"],
)
def test_damaged_documents(data: Path, name: str, content: bytes, message: str) -> None:
    write_documents(data)
    (data / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        load_task("retrieval", data_dir=data)
    assert "\n" not in str(raised.value)


def test_missing_second_file_is_reported(data: Path) -> None:
    write_tsv(data)
    (data / TSV["validation"]).unlink()
    with pytest.raises(InputError, match=r"eval\.tsv:"):
        load_task("retrieval", data_dir=data)


def test_missing_data_is_reported(data: Path) -> None:
    for folder in (data, None):
        with pytest.raises(InputError, match=r"Retrieval.*--data-dir") as raised:
            load_task("retrieval", data_dir=folder)
        assert "\n" not in str(raised.value)
        assert not task_status("retrieval", folder).available


def test_data_is_prepared_once(data: Path) -> None:
    write_tsv(data)
    folder = prepare_task("retrieval", data_dir=data)
    assert folder is not None
    assert task_status("retrieval", data).detail.endswith(f"in {data}, decoded")
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    load_task("retrieval", data_dir=data, max_length=100)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written


@pytest.mark.slow
def test_real_files_are_read(shared_data: Path) -> None:
    task = load_task("retrieval", data_dir=shared_data)
    counts = {
        name: (len(task.split(name)), sum(int(v) for v in task.split(name).labels.values))
        for name in PAIRS
    }
    assert counts == {"train": (2625, 1316), "validation": (579, 295), "test": (564, 285)}
    assert "Long Range Arena" in task.data_source
    assert re.search(r"\b54 %.*\btest\b.*\btraining\b", task.split_note)
    labels = [task.split("train")[index][1] for index in range(200)]
    assert 70 < sum(labels) < 130
