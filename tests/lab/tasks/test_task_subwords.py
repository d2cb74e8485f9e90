"""Tests of level subword: cased pieces of the training text, an end token, sample lengths."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.text import text
from rifflemix.lab.tasks.text.encoder import TextEncoder, learn_encoder

PAIRS = [("A man Runs.", "The MAN is running", "entailment"), ("No one", "A café", "neutral")]
REVIEWS = [f"{word} film number {n}<br />A Man" for n in range(20) for word in ("Good", "bad")]


@pytest.fixture
def snli(data: Path) -> Path:
    rows = [{"gold_label": c, "sentence1": a, "sentence2": b} for a, b, c in PAIRS]
    for part in ("train", "dev", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (data / f"snli_1.0_{part}.jsonl").write_text(lines)
    return data


@pytest.fixture
def imdb(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(text, "_TEXTS_PER_CLASS", 20)
    for part in ("train", "test"):
        rows = sorted([n % 2, f"{part} {review}"] for n, review in enumerate(REVIEWS))
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (data / f"imdb_{part}.jsonl.xz").write_bytes(lzma.compress(lines, preset=0))
    return data


def decoded(vocabulary: TextEncoder, ids: Any) -> str:
    return vocabulary._subwords.decode(int(i) - 2 for i in ids if i != 1)


def test_pairs_keep_their_case_and_end(snli: Path) -> None:
    task = load_task("snli", data_dir=snli, level="subword", joined=True, vocab_size=300)
    sentences = [sentence for a, b, _ in PAIRS for sentence in (a, b)]
    vocabulary = learn_encoder(sentences, "subword", vocab_size=300)
    assert task.vocab_size == len(vocabulary) + 1  # the token between sentences
    ids, _ = task.split("train")[0]
    middle = ids.tolist().index(len(vocabulary))
    first, second = ids[:middle], ids[middle + 1 :]
    assert (first[-1], second[-1]) == (1, 1)
    assert [decoded(vocabulary, part) for part in (first, second)] == list(PAIRS[0][:2])
    assert 0 not in ids
    lower = load_task("snli", data_dir=snli, level="byte")
    assert bytes((lower.split("train")[0][0][0] - 1).tolist()) == b"a man runs ."


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("level", ["word", "subword", "byte"])
def test_lengths_equal_the_lengths_of_the_samples(snli: Path, level: str, joined: bool) -> None:
    for max_length in (64, 5):
        options = {"level": level, "joined": joined, "max_length": max_length}
        split = load_task("snli", data_dir=snli, **options).split("train")
        samples = [split[index][0] for index in range(len(split))]
        longest = [len(s) if joined else max(map(len, s)) for s in samples]
        assert split.lengths().tolist() == longest


def test_all_reviews_are_trained_on_without_validation(imdb: Path) -> None:
    options = {"data_dir": imdb, "level": "subword", "vocab_size": 300, "max_length": 12}
    cut, whole = (load_task("text", **options, validation=v) for v in (True, False))
    sizes = [[len(t.split(s)) for s in ("train", "validation", "test")] for t in (cut, whole)]
    assert sizes == [[36, 4, 40], [40, 0, 40]]
    assert "no validation split" in whole.split_note
    assert whole.options["validation"] is False
    assert "validation" not in cut.options  # as in runs of earlier versions
    vocabulary = learn_encoder([f"train {review}" for review in REVIEWS], "subword", vocab_size=300)
    assert whole.vocab_size == len(vocabulary) == 300
    split = whole.split("test")
    assert split.lengths().tolist() == [len(split[index][0]) for index in range(40)]
    assert split.lengths().max() == 12
    longer = load_task("text", **{**options, "max_length": 99}, validation=False).split("train")
    ids, _ = longer[0]
    assert ids[-1] == 1
    every = [longer[index][0] for index in range(40)]
    assert all(int((ids == 1).sum()) == 1 for ids in every)
    assert {int(ids.max()) < 300 for ids in every} == {True}


def test_vocabulary_is_deterministic() -> None:
    texts = [f"{word} {n}" for n, word in enumerate(["alpha", "beta", "gamma"] * 50)]
    first, again = (
        learn_encoder(texts, "subword", vocab_size=400),
        learn_encoder(texts, "subword", vocab_size=400),
    )
    assert len(first) <= 400
    for sample in ("alpha beta", "Unseen \N{SNOWMAN} <br />", ""):
        assert first.ids(sample).tolist() == again.ids(sample).tolist()
        assert decoded(first, first.ids(sample)) == sample
        assert first.ids(sample).dtype == np.int32


BAD = {"vocab_size": 258, "validation": "no", "level": "piece"}


@pytest.mark.parametrize(("name", "value"), BAD.items())
def test_bad_options_of_reviews_are_refused(name: str, value: object, imdb: Path) -> None:
    with pytest.raises(rm.InputError, match=name):
        load_task("text", data_dir=imdb, **{"level": "subword", name: value})


def test_too_small_a_vocabulary_of_pairs_is_refused(snli: Path) -> None:
    with pytest.raises(rm.InputError, match="vocab_size"):
        load_task("snli", data_dir=snli, level="subword", vocab_size=258)


@pytest.mark.slow
def test_all_real_reviews_are_trained_on(shared_data: Path) -> None:
    task = load_task("text", data_dir=shared_data, max_length=2_048, validation=False)
    sizes = [len(task.split(name)) for name in ("train", "validation", "test")]
    assert sizes == [25_000, 0, 25_000]
    labels = [task.split("train")[index][1] for index in range(1_000)]
    assert 400 < sum(labels) < 600  # the order mixes the classes
