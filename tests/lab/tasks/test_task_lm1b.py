"""Tests of the One Billion Word Benchmark with shards in the published layout."""

from __future__ import annotations

import lzma
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, prepare_task, task_status
from rifflemix.lab.tasks.text.corpora import LM1B
from rifflemix.lab.tasks.text.next_token import NextTokenTask

RELEASE = "1-billion-word-language-modeling-benchmark-r13output"
SHARDS = {
    1: "the cat sat .\nthe dog sat on the cat .\n" * 20,
    2: "a second shard of the news .\n",
    17: "the dog , again .\n",
}
HELD_OUT = {0: "the tested cat sat .\n", 1: "the dog sat , validated .\n"}


@pytest.fixture
def shards(data: Path) -> Path:
    train = data / RELEASE / "training-monolingual.tokenized.shuffled"
    held_out = data / RELEASE / "heldout-monolingual.tokenized.shuffled"
    for folder in (train, held_out):
        folder.mkdir(parents=True)
    for number, text in SHARDS.items():
        (train / f"news.en-{number:05d}-of-00100").write_text(text)
    # The shard of the held-out text is never training text, in either folder.
    for folder in (train, held_out):
        (folder / "news.en-00000-of-00100").write_text("leaked\n")
    for number, text in HELD_OUT.items():
        (held_out / f"news.en.heldout-{number:05d}-of-00050").write_text(text)
    return data


def load(folder: Path, **options: Any) -> NextTokenTask:
    task = load_task("lm1b", data_dir=folder, **{"level": "byte", "max_length": 8, **options})
    assert isinstance(task, NextTokenTask)
    return task


def text_of(task: NextTokenTask, split: str) -> str:
    return task.vocabulary.decode(task.split(split).tokens.values)


def test_training_shards_are_in_order_without_held_out_shards(shards: Path) -> None:
    task = load(shards)
    assert text_of(task, "train") == "".join(SHARDS.values())
    assert text_of(task, "validation") == HELD_OUT[1]
    assert text_of(task, "test") == HELD_OUT[0]
    assert re.search(r"\b3\b.*\b99\b", task.data_source)
    assert "UNK" not in task.data_source
    assert task.split("train").tokens.values.dtype == np.uint8


def test_the_first_shards_only(shards: Path) -> None:
    task = load(shards, num_shards=2)
    assert text_of(task, "train") == SHARDS[1] + SHARDS[2]
    assert re.search(r"\b2\b.*\b99\b", task.data_source)
    with pytest.raises(InputError, match=r"num_shards: .*\b3\b"):
        load(shards, num_shards=4)
    with pytest.raises(InputError, match=r"num_shards: .*\b1\b.*\b99\b.*got 0\b"):
        load(shards, num_shards=0)


def test_subwords_come_from_the_training_text_and_fit_small_integers(shards: Path) -> None:
    pytest.importorskip("tokenizers")
    task = load(shards, level="bpe", bpe_size=270)
    assert (task.vocab_size, task.max_length) == (270, 8)
    for split, text in (("train", "".join(SHARDS.values())), ("test", HELD_OUT[0])):
        assert text_of(task, split) == text
    tokens = task.split("test").tokens.values
    assert tokens.dtype == np.uint16
    assert len(tokens) < len(HELD_OUT[0])
    # Per word of the text and line ends, independent of the tokens.
    batch = task.collate([task.split("test")[index] for index in range(len(task.split("test")))])
    metrics = task.metrics(torch.zeros(*batch["labels"].shape, 270), batch)
    words = len(HELD_OUT[0].split()) + 1
    begun = len(task.vocabulary.decode(tokens[:1]).split())
    nats, count = metrics["nats_per_word"]
    assert count == words - begun
    assert nats == pytest.approx((len(tokens) - 1) * math.log(270), rel=1e-5)


def test_words_outside_the_published_list_are_unknown(shards: Path) -> None:
    plain = load(shards).fingerprint()
    (shards / "vocab-2016-09-10.txt").write_text("the\ncat\nsat\n.\n")
    task = load(shards)
    assert text_of(task, "test") == "the UNK cat sat .\n"
    assert re.search(r"vocab-2016-09-10\.txt\b.*UNK", task.data_source)
    assert task.fingerprint() != plain


def test_files_in_one_folder_and_compressed(shards: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in shards.rglob("news*"):
        if "00000-of-00100" not in path.name:
            (flat / f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
    assert load(flat).fingerprint() == load(shards).fingerprint()
    assert load(shards / RELEASE).fingerprint() == load(shards).fingerprint()


def test_tokens_are_cached(shards: Path, cache: Path) -> None:
    folder = prepare_task("lm1b", data_dir=shards, level="byte")
    assert folder is not None
    assert folder.is_relative_to(cache)
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    load(shards)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps
    assert "decoded" in task_status("lm1b", shards).detail


def test_a_text_is_hashed_in_parts(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load(shards).split("train").digest()
    monkeypatch.setattr("rifflemix.lab.tasks.text.next_token._HASHED_AT_ONCE", 7)
    assert load(shards).split("train").digest() == whole


def test_missing_files_are_named(shards: Path, data: Path) -> None:
    with pytest.raises(InputError, match=r"https://.*--data-dir"):
        load_task("lm1b")
    assert not task_status("lm1b").available
    folder = shards / RELEASE / "heldout-monolingual.tokenized.shuffled"
    path = folder / "news.en.heldout-00001-of-00050"
    path.write_text("\n")
    with pytest.raises(InputError, match=r"heldout-00001-of-00050\b"):
        load(shards)
    path.unlink()
    with pytest.raises(InputError, match=r"heldout-00001-of-00050\b"):
        load(shards)
    assert not task_status("lm1b", shards).available


@pytest.mark.parametrize(("option", "value"), [("level", "word"), ("bpe_size", 3), ("stride", 9)])
def test_bad_options_are_refused(option: str, value: object, shards: Path) -> None:
    with pytest.raises(InputError, match=option):
        load(shards, **{option: value})


def test_sizes_of_the_paper_are_the_defaults() -> None:
    options = LM1B.card.options
    assert (options["level"], options["bpe_size"], options["max_length"]) == ("bpe", 2**15, 256)
