"""Tests of SST and SICK: formats, vocabularies, pairs."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path

import pytest
import torch
from damaged_files import assert_names_cut_file, assert_names_file

import rifflemix as rm
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.tasks.registry import task_status

HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"


def write(path: Path, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(lzma.compress(text, preset=0) if path.suffix == ".xz" else text)


def pair(a: str, b: str, judgment: str) -> str:
    return f"1\t{a}\t{b}\t4.5\t{judgment}"


@pytest.fixture
def sst(data: Path) -> Path:
    write(data / "sst_binary.train.txt.xz", ["1 good good film", "0 bad film", "1 a film"])
    write(data / "sst_binary.dev.txt.xz", ["0 bad unseen film"])
    write(data / "sst_binary.test.txt.xz", ["1 good"])
    return data


@pytest.fixture
def sick(data: Path) -> Path:
    rows = [
        pair("A man runs.", "The man is running", "ENTAILMENT"),
        pair("No one runs", "A man runs", "CONTRADICTION"),
        pair("A dog", "A cat sleeps, now", "NEUTRAL"),
    ]
    for part in ("train", "trial", "test"):
        write(data / f"sick.{part}.tsv.xz", [HEADER, *rows])
    return data


def test_sst_words_by_frequency_then_alphabet(sst: Path) -> None:
    task = load_task("sst", data_dir=sst)
    # film 3, good 2, a 1, bad 1
    assert task.vocab_size == 6
    assert [task.split("train")[i][0].tolist() for i in range(3)] == [[3, 3, 2], [5, 2], [4, 2]]
    assert task.split("validation")[0][0].tolist() == [5, 1, 2]
    batch = task.collate([task.split("train")[i] for i in range(3)])
    assert batch["labels"].tolist() == [1, 0, 1]
    assert batch["inputs"][1].tolist() == [5, 2, 0]
    assert batch["key_padding_mask"][1].tolist() == [False, False, True]


def test_sst_bytes_and_truncation(sst: Path) -> None:
    task = load_task("sst", data_dir=sst, level="byte", max_length=6)
    assert task.vocab_size == 257
    ids, label = task.split("train")[0]
    assert bytes((ids - 1).tolist()) == b"good g"
    assert (label, ids.dtype) == (1, torch.int64)


def test_sst_accepts_the_file_names_of_its_source(data: Path) -> None:
    for part in ("train", "dev", "test"):
        write(data / f"stsa.fine.{part}", ["4 fine", "0 poor"])
    assert load_task("sst", data_dir=data, labels="fine").num_classes == 5
    assert task_status("sst", data).available
    with pytest.raises(rm.InputError, match="SST"):
        load_task("sst", data_dir=data)


def test_sick_is_pairs_padded_to_one_length(sick: Path) -> None:
    task = load_task("sick", data_dir=sick)
    assert (task.num_sequences, task.num_classes) == (2, 3)
    batch = task.collate([task.split("train")[i] for i in range(3)])
    assert batch["inputs"].shape == batch["key_padding_mask"].shape == (3, 2, 5)
    assert batch["labels"].tolist() == [0, 2, 1]
    assert (~batch["key_padding_mask"]).sum(-1).tolist() == [[4, 4], [3, 3], [2, 5]]
    # "a" is the most frequent word, then "man" and "runs", 3 times each.
    assert batch["inputs"][0, 0, :3].tolist() == [2, 3, 4]
    assert batch["inputs"][1, 1, :3].tolist() == [2, 3, 4]


def test_pair_uses_a_dual_encoder(sick: Path) -> None:
    task = load_task("sick", data_dir=sick)
    model = rm.create_model(
        "lra_retrieval",
        vocab_size=task.vocab_size,
        num_classes=3,
        dim=8,
        num_layers=1,
        num_heads=2,
        max_length=task.max_length,
        head_hidden=[8],
        pair_mix="concat_product_difference",
    )
    batch = task.collate([task.split("train")[i] for i in range(3)])
    scores = model(batch["inputs"], key_padding_mask=batch["key_padding_mask"])
    assert scores.shape == (3, 3)
    assert torch.isfinite(task.loss(scores, batch))


def test_splits_pickle_and_fingerprints_depend_on_the_data(sst: Path) -> None:
    task = load_task("sst", data_dir=sst)
    again = pickle.loads(pickle.dumps(task.split("train")))
    assert torch.equal(again[2][0], task.split("train")[2][0])
    before = task.fingerprint()
    write(sst / "sst_binary.dev.txt.xz", ["1 bad unseen film"])
    assert load_task("sst", data_dir=sst).fingerprint() != before


DAMAGE = {
    "label": (
        "sst",
        "sst_binary.dev.txt.xz",
        ["3 too high"],
        r"sst_binary\.dev\.txt\.xz.*\b1\b.*\b0\b.*\b1\b",
    ),
    "empty": ("sst", "sst_binary.dev.txt.xz", [], r"sst_binary\.dev\.txt\.xz"),
    "header": ("sick", "sick.trial.tsv.xz", ["a\tb"], r"sick\.trial\.tsv\.xz"),
    "judgment": (
        "sick",
        "sick.trial.tsv.xz",
        [HEADER, pair("a", "b", "MAYBE")],
        r"sick\.trial\.tsv\.xz.*\b2\b",
    ),
    "fields": ("sick", "sick.trial.tsv.xz", [HEADER, "1\ta"], r"sick\.trial\.tsv\.xz.*\b2\b"),
}


@pytest.mark.parametrize(("name", "file", "lines", "words"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(
    name: str, file: str, lines: list[str], words: str, sst: Path, sick: Path
) -> None:
    write(sst / file, lines)
    with pytest.raises(rm.InputError, match=words) as caught:
        load_task(name, data_dir=sst)
    assert file in str(caught.value)


def test_truncated_archive_and_missing_file_are_named(sst: Path) -> None:
    path = sst / "sst_binary.test.txt.xz"
    assert_names_cut_file("sst", sst, path, -20)
    path.unlink()
    assert_names_file("sst", sst, path.name)


@pytest.mark.parametrize("name", ["sst", "sick"])
def test_missing_data_is_reported(name: str, data: Path) -> None:
    with pytest.raises(rm.InputError, match="--data-dir"):
        load_task(name)
    assert not task_status(name, data).available


@pytest.mark.parametrize(
    ("option", "value"), [("level", "phoneme"), ("labels", "ternary"), ("max_length", 0)]
)
def test_bad_options_are_refused(option: str, value: object, sst: Path) -> None:
    with pytest.raises(rm.InputError, match=option):
        load_task("sst", data_dir=sst, **{option: value})


SIZES = [
    ("sst", {}, (6920, 872, 1821)),
    ("sst", {"labels": "fine"}, (8544, 1101, 2210)),
    ("sick", {}, (4500, 500, 4927)),
]


@pytest.mark.parametrize(("name", "options", "sizes"), SIZES, ids=["sst", "sst fine", "sick"])
def test_real_files_are_read(
    name: str, options: dict[str, str], sizes: tuple[int, ...], shared_data: Path
) -> None:
    task: Task = load_task(name, data_dir=shared_data, **options)
    assert tuple(len(task.split(s)) for s in ("train", "validation", "test")) == sizes
    split = task.split("train")
    longest = max(len(ids) for index in range(len(split)) for ids in split.sample(index))
    assert longest <= 64
