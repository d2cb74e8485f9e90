"""Tests of language tasks: windows, units of the metrics and bad options."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_files import TRAIN, load
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.tasks import prepare_task
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.text.next_token import UNCOUNTED, NextTokenTask, WindowSplit


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
    ("level", "message"),
    [
        ("word", "20 % of validation .*0 % of test .*words"),
        ("character", "15 % of validation .*0 % of test .*characters"),
        ("byte", None),
    ],
)
def test_tokens_missing_in_training_are_reported(
    ptb: Path, level: str, message: str | None
) -> None:
    note = load(ptb, level=level).split_note
    assert ("bits_per_byte" in note) == (message is not None)
    assert message is None or re.search(message, note)


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
def test_bad_options_are_refused(options: dict[str, Any], message: str, ptb: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(ptb, **options)
    assert "\n" not in str(caught.value)
