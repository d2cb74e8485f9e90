"""Tests of language tasks: tokens, windows, units of the metrics, files and downloads."""

from __future__ import annotations

import hashlib
import lzma
import math
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, prepare_task, task_status
from rifflemix.lab.tasks.data_io.file_task import Remote, download
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.text.language import Shakespeare, WikiText
from rifflemix.lab.tasks.text.next_token import UNCOUNTED, NextTokenTask, WindowSplit
from rifflemix.lab.tasks.text.vocabulary import Vocabulary, build_vocabulary

TRAIN = "the cat sat\nthe dog sat on the cat\n" * 30
OTHER = "the café\nsat\n"


@pytest.fixture
def ptb(data: Path) -> Path:
    (data / "ptb.train.txt").write_text(TRAIN)
    (data / "ptb.valid.txt").write_text(OTHER, encoding="utf-8")
    (data / "ptb.test.txt").write_text("the dog sat\n")
    return data


# Tokens.


def vocabulary(level: str, others: tuple[str, ...] = (OTHER,)) -> Vocabulary:
    if level == "bpe":
        pytest.importorskip("tokenizers")
    return build_vocabulary(level, TRAIN, others, bpe_size=262)


@pytest.mark.parametrize("level", ["byte", "character", "bpe"])
def test_text_is_decoded_exactly(level: str) -> None:
    words = vocabulary(level)
    text = "the dog sat on\n  the cat\n"
    assert words.decode(words.encode(text)) == text


def test_words_and_line_ends() -> None:
    words = vocabulary("word")
    assert words.pieces[0] == b"the "  # the most frequent
    assert words.pieces[-1] == b"<unk> "  # needed: validation has one unknown word
    assert words.decode(words.encode(" the  cat \n\nsat")) == "the cat \n\nsat "
    assert words.decode(words.encode("the café\n")) == "the <unk> \n"


def test_words_of_one_frequency_are_in_order() -> None:
    words = build_vocabulary("word", "b a c\nb c a\nb\n")
    assert words.pieces == (b"\n", b"b ", b"a ", b"c ")


def test_characters_are_those_of_the_training_text() -> None:
    words = vocabulary("character")
    assert [piece.decode() for piece in words.pieces[:-1]] == sorted(set(TRAIN))
    assert words.decode(words.encode("thé")) == "th\N{REPLACEMENT CHARACTER}"


def test_vocabulary_without_unknown_characters_has_no_unknown_token() -> None:
    words = build_vocabulary("character", TRAIN, ["the cat\n"])
    assert len(words) == len(set(TRAIN))
    with pytest.raises(InputError, match="got 'x'"):
        words.encode("the x")


@pytest.mark.parametrize("level", ["byte", "character", "bpe"])
def test_lengths_of_tokens_add_up_to_the_length_of_the_text(level: str) -> None:
    words = build_vocabulary(level, TRAIN + OTHER, bpe_size=262)
    ids = words.encode(OTHER)
    assert words.num_bytes[ids].sum() == len(OTHER.encode())
    assert words.num_characters[ids].sum() == len(OTHER)


def test_bpe_is_shorter_and_has_the_requested_size() -> None:
    words = vocabulary("bpe")
    assert len(words) == 262
    assert len(words.encode(TRAIN)) < 0.6 * len(TRAIN)
    assert np.array_equal(words.encode(TRAIN), vocabulary("bpe").encode(TRAIN))


def test_tokeniser_is_read_from_a_file(tmp_path: Path) -> None:
    own = vocabulary("bpe")
    path = tmp_path / "tokenizer.json"
    path.write_text(own.merges)
    read = build_vocabulary("bpe", "nothing of the kind", tokenizer=str(path))
    assert read.pieces == own.pieces
    path.write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer"):
        build_vocabulary("bpe", TRAIN, tokenizer=str(path))
    with pytest.raises(InputError, match=r"tokenizer: .*JSON"):
        build_vocabulary("bpe", TRAIN, tokenizer=str(tmp_path / "none.json"))


def test_missing_tokenizers_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"'rifflemix\[data\]'"):
        build_vocabulary("bpe", TRAIN)


# Windows.


def windows(total: int, length: int, stride: int) -> list[tuple[list[int], list[int]]]:
    split = WindowSplit(Array(np.arange(total, dtype=np.int32)), length, stride)
    return [(x.tolist(), y.tolist()) for x, y in (split[i] for i in range(len(split)))]


@pytest.mark.parametrize("total", [2, 3, 5, 8, 9, 10, 16, 17, 23])
@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 3), (8, 1), (1, 1), (30, 7)])
def test_every_token_but_the_first_is_counted_once(total: int, length: int, stride: int) -> None:
    stride = min(stride, length)
    counted: list[int] = []
    for inputs, labels in windows(total, length, stride):
        assert len(inputs) == len(labels) == min(length, total - 1)
        right = [token + 1 for token in inputs]
        assert all(y in (UNCOUNTED, want) for y, want in zip(labels, right, strict=True))
        own = [y for y in labels if y != UNCOUNTED]
        assert own  # an empty window is not allowed
        counted += own
    assert counted == list(range(1, total))


def test_sliding_windows_bring_context() -> None:
    for index, (inputs, labels) in enumerate(windows(40, 8, 3)):
        first = next(i for i, y in enumerate(labels) if y != UNCOUNTED)
        assert inputs[first] == labels[first] - 1
        assert index == 0 or first >= 8 - 3


def test_windows_pickle_and_end() -> None:
    split = WindowSplit(Array(np.arange(20, dtype=np.int32)), 8, 8)
    again = pickle.loads(pickle.dumps(split))
    assert again.digest() == split.digest()
    assert torch.equal(again[1][1], split[1][1])
    assert WindowSplit(split.tokens, 8, 4).digest() != split.digest()
    with pytest.raises(IndexError):
        split[len(split)]


# The task.


def load(folder: Path, **options: Any) -> NextTokenTask:
    task = load_task("ptb", data_dir=folder, **options)
    assert isinstance(task, NextTokenTask)
    return task


@pytest.mark.parametrize("level", ["byte", "character", "word", "bpe"])
def test_splits_contain_the_texts(level: str, ptb: Path) -> None:
    task = load(ptb, level=level, max_length=16, bpe_size=262)
    text = task.vocabulary.decode(task.split("train").tokens.values)
    assert text == (TRAIN.replace("\n", " \n") if level == "word" else TRAIN)
    assert task.vocab_size == task.num_classes == len(task.vocabulary)
    batch = task.collate([task.split("train")[0], task.split("train")[1]])
    assert batch["inputs"].shape == batch["labels"].shape == (2, 16)
    assert set(batch) == {"inputs", "labels"}


def test_second_load_reads_the_cache(ptb: Path, cache: Path) -> None:
    folder = prepare_task("ptb", data_dir=ptb, level="word")
    assert folder is not None
    assert folder.is_relative_to(cache)
    first = load(ptb).fingerprint()
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert load(ptb).fingerprint() == first
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps
    assert load(ptb, level="byte").fingerprint() != first
    assert load(ptb, stride=3).fingerprint() != first


def test_compressed_files_in_a_subfolder(ptb: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "ptb"
    other.mkdir(parents=True)
    for path in ptb.iterdir():
        (other / f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
    assert load(other.parent).fingerprint() == load(ptb).fingerprint()


def outputs_for(task: NextTokenTask, probability: float, labels: Tensor) -> Tensor:
    """Build logits that give every label `probability` and share the rest evenly."""
    rest = (1 - probability) / (task.num_classes - 1)
    logits = torch.full((*labels.shape, task.num_classes), math.log(rest))
    wanted = labels.clamp(min=0).unsqueeze(-1)
    return logits.scatter(-1, wanted, math.log(probability))


@pytest.mark.parametrize("level", ["byte", "character", "word", "bpe"])
@pytest.mark.parametrize("stride", [None, 3])
def test_metrics_are_converted_between_units(level: str, stride: int | None, ptb: Path) -> None:
    """Check a whole split with probability 1/2 for every token, so one bit per token."""
    task = load(ptb, level=level, stride=stride, max_length=7, bpe_size=262)
    split = task.split("validation")
    sums: dict[str, tuple[float, int]] = {}
    for index in range(len(split)):
        batch = task.collate([split[index]])
        outputs = outputs_for(task, 1 / 2, batch["labels"])
        for name, (value, count) in task.metrics(outputs, batch).items():
            total, seen = sums.get(name, (0.0, 0))
            sums[name] = total + value, seen + count
    tokens = split.tokens.values
    text = b"".join(task.vocabulary.pieces[token] for token in tokens[1:])
    means = {name: total / count for name, (total, count) in sums.items()}
    assert sums["loss"][1] == len(tokens) - 1
    assert means["loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert means["accuracy"] == 1
    assert means["bits_per_byte"] == pytest.approx((len(tokens) - 1) / len(text), rel=1e-5)
    if level != "byte":  # the first byte of a text may be part of a character
        characters = len(text.decode())
        assert means["bits_per_character"] == pytest.approx((len(tokens) - 1) / characters)
    # Words that begin in the first token are not predicted.
    first = task.vocabulary.pieces[tokens[0]].decode()
    whole = first + text.decode()
    words = len(whole.split()) + whole.count("\n") - len(first.split())
    assert sums["nats_per_word"][1] == words
    assert task.summarise(means) == {
        "perplexity": pytest.approx(2, rel=1e-5),
        "word_perplexity": pytest.approx(2 ** ((len(tokens) - 1) / words), rel=1e-5),
        "perplexity_deviation": pytest.approx(0, abs=1e-3),
        "accuracy_deviation": 0,
    }
    assert (words == len(tokens) - 1) is (level == "word")


@pytest.mark.parametrize("metric", ["perplexity", "bits_per_byte"])
def test_deviation_of_a_metric_is_computed_over_windows(metric: str, ptb: Path) -> None:
    """Use windows with equally many tokens and random likelihoods."""
    task = replace(load(ptb, level="byte", max_length=7), metric=metric)
    split = task.split("validation")
    whole = [index for index in range(len(split)) if (split[index][1] >= 0).all()]
    batch = task.collate([split[index] for index in whole])
    outputs = torch.randn(*batch["labels"].shape, task.num_classes)
    nats = torch.nn.functional.cross_entropy(
        outputs.flatten(0, 1), batch["labels"].flatten(), reduction="none"
    ).view_as(batch["labels"])
    means = {name: total / count for name, (total, count) in task.metrics(outputs, batch).items()}
    spread = nats.mean(dim=1).std(correction=0).item()
    factor = math.exp(means["loss"]) if metric == "perplexity" else 1 / math.log(2)
    assert task.summarise(means)[f"{metric}_deviation"] == pytest.approx(factor * spread, rel=1e-4)


def test_every_metric_has_a_direction(ptb: Path) -> None:
    task = load(ptb)
    batch = task.collate([task.split("validation")[0]])
    sums = task.metrics(torch.randn(*batch["labels"].shape, task.num_classes), batch)
    means = {name: total / count for name, (total, count) in sums.items()}
    names = {*means, *task.summarise(means)}
    shown = {n for n in names if not n.startswith("_") and not n.endswith("_deviation")}
    assert shown == set(task.metric_directions)
    assert task.metric_directions[task.metric] is task.higher_is_better


def test_word_perplexity_uses_the_factor_of_the_paper(ptb: Path) -> None:
    """Tensor2Tensor: 176,884 subwords for 159,658 words, "log-ppl/tok=3.40, PPL/word=43.2"."""
    loss, tokens, words = 3.40, 176_884, 159_658
    assert tokens / words == pytest.approx(1.107893, abs=5e-7)
    means = {"loss": loss, "nats_per_word": loss * tokens / words}
    found = load(ptb).summarise(means)["word_perplexity"]
    assert found == pytest.approx(math.exp(loss * 1.107893), rel=1e-5)
    assert round(found, 1) == 43.2


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["ab", "c d", " ", "e", "\n", "f"], 5),  # abc, d, e, the end of the line, f
        (["a", "b", "c"], 1),
        ([" a", "\n\n", " b "], 4),
        (["a", "", "b"], 2),  # a token without text separates words
        ([" ", "  "], 0),
    ],
)
def test_words_are_counted_across_tokens(pieces: list[str], words: int) -> None:
    known = tuple(piece.encode() for piece in dict.fromkeys(["\t", *pieces]))
    vocabulary = Vocabulary("bpe", known)
    ids = np.array([known.index(piece.encode()) for piece in pieces])
    before = np.array([0, *ids[:-1]])
    assert vocabulary.count_words(before, ids) == words
    # The counts of two parts add up for every cut.
    for cut in range(1, len(ids)):
        first, second = slice(cut), slice(cut, None)
        parts = [vocabulary.count_words(before[part], ids[part]) for part in (first, second)]
        assert sum(parts) == words


def test_loss_is_the_mean_over_scored_tokens(ptb: Path) -> None:
    task = load(ptb, level="byte", max_length=4)
    labels = torch.tensor([[5, UNCOUNTED, 7, 8], [UNCOUNTED, UNCOUNTED, UNCOUNTED, 9]])
    outputs = torch.randn(2, 4, 256)
    expected = -outputs.log_softmax(-1)[[0, 0, 0, 1], [0, 2, 3, 3], [5, 7, 8, 9]].mean()
    batch = {"inputs": torch.zeros_like(labels), "labels": labels}
    torch.testing.assert_close(task.loss(outputs, batch), expected)
    nats, count = task.metrics(outputs, batch)["loss"]
    assert (count, nats / count) == (4, pytest.approx(expected.item(), rel=1e-5))
    assert task.count_labels(batch) == count


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("word", "20 % of validation .*0 % of test .*words"),
        ("character", "15 % of validation .*0 % of test .*characters"),
        ("byte", None),
    ],
)
def test_tokens_missing_in_training_are_reported(ptb: Path, level: str, told: str | None) -> None:
    note = load(ptb, level=level).split_note
    assert ("bits_per_byte" in note) == (told is not None)
    assert told is None or re.search(told, note)


def test_diverged_losses_have_a_perplexity(ptb: Path) -> None:
    assert load(ptb).summarise({"loss": 1e4}) == {"perplexity": math.inf}


def test_outputs_of_a_classifier_are_refused(ptb: Path) -> None:
    task = load(ptb, max_length=4)
    batch = task.collate([task.split("train")[0]])
    with pytest.raises(InputError, match=r"outputs: .*got \(1, 7\)"):
        task.loss(torch.zeros(1, task.num_classes), batch)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "level": ({"level": "wrd"}, "level: .*got 'wrd'"),
    "length": ({"max_length": 0}, r"max_length: .*\b1\b.*got 0\b"),
    "stride": ({"stride": 200}, r"stride: .*\b1\b.*\b128\b.*got 200\b"),
    "no stride": ({"stride": 0}, r"stride: .*\b1\b.*\b128\b.*got 0\b"),
    "size": ({"bpe_size": 256}, r"bpe_size: .*\b257\b"),
    "tokenizer": ({"tokenizer": 3}, "tokenizer: .*got 3"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_options(options: dict[str, Any], message: str, ptb: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(ptb, **options)
    assert "\n" not in str(caught.value)


# Sources of the text.


@pytest.mark.parametrize("name", ["ptb", "shakespeare", "wikitext"])
def test_missing_files_in_one_sentence(name: str, data: Path) -> None:
    with pytest.raises(InputError, match=r"https://.*--data-dir") as caught:
        load_task(name, data_dir=data)
    assert "\n" not in str(caught.value)
    assert not task_status(name, data).available


@pytest.mark.parametrize("absent", ["train", "valid"])
def test_missing_split_is_named(absent: str, ptb: Path) -> None:
    (ptb / f"ptb.{absent}.txt").unlink()
    with pytest.raises(InputError, match=rf"ptb\.{absent}\.txt"):
        load(ptb)
    assert f"ptb.{absent}.txt" in task_status("ptb", ptb).detail


def test_text_that_is_too_short(ptb: Path) -> None:
    (ptb / "ptb.test.txt").write_text("\n")
    with pytest.raises(InputError, match=r"ptb\.train\.txt.*\b2\b"):
        load(ptb)


def test_damaged_text(ptb: Path) -> None:
    (ptb / "ptb.test.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"ptb\.test\.txt:"):
        load(ptb)


def test_shakespeare_is_cut_in_order(data: Path) -> None:
    text = "".join(f"{number:04}\n" for number in range(200))
    (data / "input.txt").write_text(text)
    task = load_task("shakespeare", data_dir=data, max_length=9)
    parts = [task.split(s).tokens.values.tobytes() for s in ("train", "validation", "test")]
    joined = b"".join(bytes(np.frombuffer(part, np.int32).astype(np.uint8)) for part in parts)
    assert joined.decode() == text
    assert [len(part) // 4 for part in parts] == [900, 50, 50]


def test_download_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abc")
    sha256 = hashlib.sha256(b"abc").hexdigest()
    told: list[str] = []

    def fetch(url: str, wanted: str | None, size: int | None = None) -> bytes:
        remote = Remote(url, wanted, size)
        return download(remote, lambda what, *_: told.append(what), InputError)

    assert fetch(path.as_uri(), sha256) == fetch(path.as_uri(), None, 3) == b"abc"
    assert all("text.txt" in what for what in told)
    assert len(set(told)) == 1
    with pytest.raises(InputError, match=r"text\.txt.*\b3\b.*\b4\b"):
        fetch(path.as_uri(), None, 4)
    with pytest.raises(InputError, match=r"sha256\b.*\b000\b"):
        fetch(path.as_uri(), "000")
    with pytest.raises(InputError, match=r"/absent\b"):
        fetch((tmp_path / "absent").as_uri(), sha256)


def test_corpus_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input.txt"
    path.write_text(TRAIN)
    sha256 = hashlib.sha256(TRAIN.encode()).hexdigest()
    remotes = {"all": Remote(path.as_uri(), sha256)}
    monkeypatch.setattr(Shakespeare, "remotes", remotes)
    assert not task_status("shakespeare").available
    first = load_task("shakespeare", max_length=9).fingerprint()
    path.unlink()  # the second load fetches no file
    assert load_task("shakespeare", max_length=9).fingerprint() == first
    assert task_status("shakespeare").available


def test_wikitext_is_downloaded_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, put_on_hub: Callable[..., list[str]]
) -> None:
    lines = {"train": ["a b\n", "", "b\n"], "validation": ["a\n", "b\n"], "test": ["a c\n"]}
    splits = {name: {"text": text} for name, text in lines.items()}
    fetched = put_on_hub("Salesforce/wikitext", splits)
    with pytest.raises(InputError, match=r"\btrain\b.*\b6\b.*\b2,088\b"):
        load_task("wikitext", max_length=2)
    monkeypatch.setattr(WikiText, "words", {"train": 6, "validation": 4, "test": 3})
    fetched.clear()
    task = load_task("wikitext", max_length=2)
    assert all("/b08601e04326c79dfdd32d625aee71d232d685c3/wikitext-2-v1/" in u for u in fetched)
    assert len(fetched) == 3
    assert task.vocabulary.decode(task.split("train").tokens.values) == "a b \n\nb \n"
    assert task.vocabulary.decode(task.split("test").tokens.values) == "a <unk> \n"


# The real files.

PUBLISHED = {
    "ptb words": ("ptb", "word", 10_000, (929_589, 73_760, 82_430)),
    "shakespeare characters": ("shakespeare", "character", 65, (1_003_854, 55_770, 55_770)),
    "shakespeare bytes": ("shakespeare", "byte", 256, (1_003_854, 55_770, 55_770)),
}


@pytest.mark.parametrize(
    ("name", "level", "size", "tokens"), PUBLISHED.values(), ids=PUBLISHED.keys()
)
def test_corpora_have_the_published_sizes(
    name: str, level: str, size: int, tokens: tuple[int, ...], shared_data: Path
) -> None:
    task = load_task(name, data_dir=shared_data, level=level)
    assert task.vocab_size == size
    found = tuple(len(task.split(s).tokens.values) for s in ("train", "validation", "test"))
    assert found == tokens


def test_wikitext_without_its_training_text(shared_data: Path) -> None:
    with pytest.raises(InputError, match=r"wikitext2\.train\.txt"):
        load_task("wikitext", data_dir=shared_data)
