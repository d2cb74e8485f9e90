"""Tests of SNLI and MultiNLI as published, with pairs read as one sequence."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch

import rifflemix as rm
from rifflemix.lab.tasks import load_task, prepare_task, task_status

E, N, C = "entailment", "neutral", "contradiction"


def pair(a: str, b: str, label: str) -> dict[str, Any]:
    # The release also has other fields.
    return {"annotator_labels": [label], "gold_label": label, "sentence1": a, "sentence2": b}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(lzma.compress(text, preset=0) if path.suffix == ".xz" else text)


TRAIN = [
    pair("A man runs.", "The man is running", E),
    pair("A man", "A dog", "-"),
    pair("No one runs", "A man runs", C),
    pair("A dog", "A cat sleeps, now", N),
]


@pytest.fixture
def snli(data: Path) -> Path:
    write(data / "snli_1.0_train.jsonl", TRAIN)
    write(data / "snli_1.0_dev.jsonl", [pair("A unicorn", "A man", N)])
    write(data / "snli_1.0_test.jsonl", [pair("Café", "A man", "-"), pair("A dog", "No dog", C)])
    return data


@pytest.fixture
def mnli(data: Path) -> Path:
    many = [
        pair(f"Word{number} runs", f"A {number % 7}", (E, N, C)[number % 3]) for number in range(90)
    ]
    write(data / "multinli_1.0_train.jsonl", many)
    write(data / "multinli_1.0_dev_matched.jsonl", [pair("A", "B", E), pair("A", "C", "-")])
    write(data / "multinli_1.0_dev_mismatched.jsonl", [pair("D", "E", C), pair("D", "F", N)])
    return data


def test_pairs_without_a_gold_label_are_skipped(snli: Path) -> None:
    task = load_task("snli", data_dir=snli)
    assert [len(task.split(s)) for s in ("train", "validation", "test")] == [3, 1, 1]
    assert (task.num_sequences, task.num_classes) == (2, 3)
    batch = task.collate([task.split("train")[index] for index in range(3)])
    assert batch["labels"].tolist() == [0, 2, 1]
    # "a" is the most frequent word, then "man" and "runs".
    assert batch["inputs"][1, 1, :3].tolist() == [2, 3, 4]
    assert (~batch["key_padding_mask"]).sum(-1).tolist() == [[4, 4], [3, 3], [2, 5]]
    assert task.split("validation")[0][0][0].tolist() == [2, 1]  # unicorn is not in training


def test_pairs_as_one_sequence(snli: Path) -> None:
    pairs, joined = (load_task("snli", data_dir=snli, joined=value) for value in (False, True))
    assert joined.num_sequences == 1
    assert joined.vocab_size == pairs.vocab_size + 1
    separator = torch.tensor([pairs.vocab_size])
    for index in range(3):
        (first, second), label = pairs.split("train")[index]
        whole, same = joined.split("train")[index]
        assert torch.equal(whole, torch.cat((first, separator, second)))
        assert same == label
    cut = load_task("snli", data_dir=snli, joined=True, max_length=5)
    assert len(cut.split("train")[0][0]) == 5
    assert len({joined.fingerprint(), pairs.fingerprint(), cut.fingerprint()}) == 3


def test_joined_pair_uses_a_classifier(snli: Path) -> None:
    task = load_task("snli", data_dir=snli, joined=True, level="byte")
    assert task.vocab_size == 258
    model = rm.create_model(
        "sinkhorn_sortcut_nli", vocab_size=258, max_length=task.max_length, dim=8, num_heads=2
    )
    batch = task.collate([task.split("train")[index] for index in range(3)])
    scores = model(batch["inputs"], key_padding_mask=batch["key_padding_mask"])
    assert torch.isfinite(task.loss(scores, batch))


def test_sick_is_joined_too(data: Path) -> None:
    header = "sentence_A\tsentence_B\tentailment_judgment\n"
    for part in ("train", "trial", "test"):
        path = data / f"sick.{part}.tsv.xz"
        path.write_bytes(lzma.compress(f"{header}A man\tA dog\tNEUTRAL\n".encode()))
    task = load_task("sick", data_dir=data, joined=True)
    assert task.split("train")[0][0].tolist() == [2, 4, 5, 2, 3]
    assert task.vocab_size == 6


def test_the_most_frequent_words_only(snli: Path) -> None:
    task = load_task("snli", data_dir=snli, vocab_size=4)
    assert task.vocab_size == 4
    assert task.split("train")[1][0][1].tolist() == [2, 3, 1]
    with pytest.raises(rm.InputError, match=r"vocab_size: .*\b3\b.*got 2\b"):
        load_task("snli", data_dir=snli, vocab_size=2)


def test_tokens_are_cached_until_files_change(snli: Path) -> None:
    before = load_task("snli", data_dir=snli).fingerprint()
    folder = prepare_task("snli", data_dir=snli)
    assert folder is not None
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert load_task("snli", data_dir=snli).fingerprint() == before
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps
    write(snli / "snli_1.0_dev.jsonl", [pair("A unicorn", "A man", C)])
    assert load_task("snli", data_dir=snli).fingerprint() != before


def test_folders_and_compressed_files_of_the_release(snli: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other" / "snli_1.0"
    folder.mkdir(parents=True)
    for path in snli.iterdir():
        (folder / f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
    assert task_status("snli", folder.parent).available
    again = load_task("snli", data_dir=folder.parent)
    assert again.fingerprint() == load_task("snli", data_dir=snli).fingerprint()


def test_multinli_keeps_training_pairs_for_validation(mnli: Path) -> None:
    task = load_task("mnli", data_dir=mnli)
    assert [len(task.split(s)) for s in ("train", "validation", "test")] == [88, 2, 3]

    def pairs(split: str) -> set[tuple[int, ...]]:
        rows = (task.split(split)[index][0] for index in range(len(task.split(split))))
        return {tuple(first.tolist() + second.tolist()) for first, second in rows}

    assert len(pairs("train")) == 88
    assert not pairs("train") & pairs("validation")
    assert task.split("test")[0][1] == 0
    assert [task.split("test")[index][1] for index in (1, 2)] == [2, 1]


@pytest.mark.parametrize(("test_on", "labels"), [("matched", [0]), ("mismatched", [2, 1])])
def test_multinli_tests_on_either_set(test_on: str, labels: list[int], mnli: Path) -> None:
    split = load_task("mnli", data_dir=mnli, test_on=test_on).split("test")
    assert [split[index][1] for index in range(len(split))] == labels


def test_validation_does_not_depend_on_the_order_of_the_file(mnli: Path) -> None:
    held = load_task("mnli", data_dir=mnli).split("validation")
    before = {tuple(held.sample(index)[0].tolist()) for index in range(len(held))}
    path = mnli / "multinli_1.0_train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write(path, rows[::-1])
    held = load_task("mnli", data_dir=mnli).split("validation")
    assert {tuple(held.sample(index)[0].tolist()) for index in range(len(held))} == before


DAMAGE = {
    "no json": ('{"gold_label": "neutral"', "snli_1.0_dev.jsonl:"),
    "no label": ('{"sentence1": "a", "sentence2": "b"}', r"snli_1\.0_dev\.jsonl.*\b1\b"),
    "other label": (json.dumps(pair("a", "b", "hidden")), r"snli_1\.0_dev\.jsonl.*\b1\b"),
    "empty sentence": (json.dumps(pair("a", " ", "neutral")), r"snli_1\.0_dev\.jsonl.*\b1\b"),
    "no object": ("[1]", r"snli_1\.0_dev\.jsonl.*\b1\b"),
    "nothing": ("", r"snli_1\.0_dev\.jsonl"),
    "no gold labels": (json.dumps(pair("a", "b", "-")), r"snli_1\.0_dev\.jsonl"),
    "latin-1": (b'{"gold_label": "neutral", "sentence1": "caf\xe9"}', r"snli_1\.0_dev\.jsonl"),
}


@pytest.mark.parametrize(("line", "words"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(line: str | bytes, words: str, snli: Path) -> None:
    content = line if isinstance(line, bytes) else line.encode()
    (snli / "snli_1.0_dev.jsonl").write_bytes(content + b"\n")
    with pytest.raises(rm.InputError, match=words) as caught:
        load_task("snli", data_dir=snli)
    assert "snli_1.0_dev.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["snli", "mnli"])
def test_missing_files_in_one_sentence(name: str, data: Path, snli: Path) -> None:
    with pytest.raises(rm.InputError, match=r"https://.*--data-dir"):
        load_task(name)
    assert not task_status(name).available
    (snli / "snli_1.0_test.jsonl").unlink()
    with pytest.raises(rm.InputError, match=r"snli_1.0_test.jsonl"):
        load_task("snli", data_dir=snli)


@pytest.mark.parametrize(
    ("option", "value"),
    [("level", "phoneme"), ("max_length", 0), ("joined", 1), ("test_on", "all")],
)
def test_bad_options_are_refused(option: str, value: object, mnli: Path) -> None:
    with pytest.raises(rm.InputError, match=option):
        load_task("mnli", data_dir=mnli, **{option: value})
