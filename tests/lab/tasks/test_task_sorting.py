"""Tests of sequence sorting: generated samples, batches and metrics."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, prepare_task, task_status
from rifflemix.lab.tasks.synthetic.sorting import (
    END,
    FIRST_SYMBOL,
    PAD,
    FreeRunningSortingTask,
    SortingTask,
    edit_distance,
)
from rifflemix.lab.train.protocols import MeasuresWriting

SMALL = {
    "max_length": 6,
    "test_max_length": 11,
    "num_train": 500,
    "num_validation": 60,
    "num_test": 300,
}


def load(seed: int = 0, **options: Any) -> SortingTask:
    task = load_task("sort", seed=seed, **{**SMALL, **options})
    assert isinstance(task, SortingTask)
    return task


def batch_of(task: SortingTask, split: str = "train", count: int = 20) -> dict[str, Tensor]:
    return task.collate([task.split(split)[index] for index in range(count)])


@pytest.mark.parametrize(("split", "longest"), [("train", 6), ("validation", 6), ("test", 11)])
def test_targets_are_the_sorted_inputs(split: str, longest: int) -> None:
    samples = [load().split(split)[i] for i in range(SMALL[f"num_{split}"])]
    for read, write in samples:
        assert read[-1] == write[-1] == END
        assert write[:-1].tolist() == sorted(read[:-1].tolist())
        assert read[:-1].min() >= FIRST_SYMBOL
        assert read[:-1].max() < FIRST_SYMBOL + 11
    assert {len(read) - 1 for read, _ in samples} == set(range(1, longest + 1))


def test_lengths_and_symbols_are_uniform() -> None:
    split = load(num_train=6000).split("train")
    lengths = np.bincount(np.diff(split.ends, prepend=0), minlength=7)[1:]
    assert abs(lengths / 6000 - 1 / 6).max() < 0.02
    symbols = np.bincount(split.symbols, minlength=11)
    assert abs(symbols / len(split.symbols) - 1 / 11).max() < 0.01


def test_data_depends_on_seed_and_split() -> None:
    assert load().fingerprint() == load().fingerprint()
    assert load(seed=1).fingerprint() != load().fingerprint()
    train, validation = (load().split(name) for name in ("train", "validation"))
    assert train.digest() != validation.digest()
    # A sample does not depend on the number of samples.
    assert torch.equal(load(num_train=10).split("train")[7][0], train[7][0])
    assert pickle.loads(pickle.dumps(train)).digest() == train.digest()


def test_sizes_of_the_paper() -> None:
    task = load_task("sort", num_train=10, num_validation=10, num_test=10)
    assert (task.vocab_size, task.max_length) == (514, 513)
    assert task.options["max_length"] == 256
    assert prepare_task("sort", **SMALL) is None
    assert task_status("sort").available


def test_batches_are_padded() -> None:
    batch = batch_of(load())
    inputs, mask, labels = batch["inputs"], batch["key_padding_mask"], batch["labels"]
    assert (inputs[mask] == PAD).all()
    assert (inputs[~mask] != PAD).all()
    counted = labels != -100
    assert torch.equal(counted, ~mask)
    # The decoder reads its target, one position later.
    decoder = batch["decoder_inputs"]
    assert (decoder[:, 0] == PAD).all()
    later = counted[:, 1:]
    assert torch.equal(decoder[:, 1:][later], labels[:, :-1][later])


def logits_for(tokens: Tensor, classes: int) -> Tensor:
    return 9.0 * torch.nn.functional.one_hot(tokens.clamp(min=0), classes).float()


def test_metrics_of_right_and_wrong_sequences() -> None:
    task = load()
    batch = batch_of(task)
    right = logits_for(batch["labels"], task.num_classes)
    metrics = task.metrics(right, batch)
    tokens = int((batch["labels"] != -100).sum())
    assert task.count_labels(batch) == tokens
    assert metrics["exact_match"] == (20, 20)
    assert metrics["accuracy"] == (tokens, tokens)
    wrong = right.clone()
    wrong[3, 0] = logits_for(torch.tensor(END), task.num_classes)
    metrics = task.metrics(wrong, batch)
    assert metrics["exact_match"] == (19, 20)
    assert metrics["accuracy"] == (tokens - 1, tokens)
    # Outputs behind a sequence do not count.
    padded = (batch["labels"] == -100).nonzero()[0]
    right[tuple(padded)] = 5 * torch.randn(task.num_classes)
    assert task.metrics(right, batch)["exact_match"] == (20, 20)


def test_padding_is_scored_as_in_tensor2tensor() -> None:
    """Count edits of all tokens of a padded row, except padding, against the right sequence."""
    task = load()
    batch = batch_of(task)
    labels = batch["labels"]
    counted = labels != -100
    tokens, behind = int(counted.sum()), int((~counted).sum())
    assert behind > 10
    for written, edits in (
        (labels.masked_fill(~counted, PAD), 0),  # no tokens behind the end
        (labels.masked_fill(~counted, END), behind),  # every token behind it is an insertion
    ):
        metrics = task.metrics(logits_for(written, task.num_classes), batch)
        assert metrics["tail_edit_distance"] == (edits, tokens)
        assert metrics["edit_distance"] == (0, tokens)
        assert metrics["exact_match"] == (20, 20)
    # Padding inside a row is ignored: a missing token is one edit, independent of later tokens.
    holed = labels.masked_fill(~counted, PAD)
    holed[:, 0] = PAD
    metrics = task.metrics(logits_for(holed, task.num_classes), batch)
    assert metrics["tail_edit_distance"] == (20, tokens)
    everything = torch.full_like(labels, PAD)
    metrics = task.metrics(logits_for(everything, task.num_classes), batch)
    assert metrics["tail_edit_distance"] == (tokens, tokens)


def test_score_of_padding_depends_on_the_batches() -> None:
    """Show why batches have similar lengths: a single sequence has no tail."""
    task = load()
    samples = [task.split("test")[index] for index in range(40)]
    together, alone = task.collate(samples), [task.collate([sample]) for sample in samples]

    def edits(batch: dict[str, Tensor]) -> float:
        written = batch["labels"].clamp(min=END)
        return task.metrics(logits_for(written, task.num_classes), batch)["tail_edit_distance"][0]

    assert sum(map(edits, alone)) == 0
    assert edits(together) == together["key_padding_mask"].sum()


def test_lengths_equal_the_lengths_of_the_samples() -> None:
    split = load().split("test")
    assert split.lengths().tolist() == [len(split[index][0]) for index in range(len(split))]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_accuracy_of_repeating_the_token_before(split: str) -> None:
    """Measure the accuracy that needs no look at the sequence to be sorted."""
    task = load(num_validation=100, num_test=100)
    batch = batch_of(task, split, 100)
    right, total = task.metrics(logits_for(batch["decoder_inputs"], task.num_classes), batch)[
        "accuracy"
    ]
    assert task.blind_accuracy(split) == right / total > 0


def test_edit_distance_of_the_likeliest_tokens() -> None:
    """Predict from the right previous tokens; count per symbol; ignore tokens after the end."""
    task = load()
    assert not isinstance(task, MeasuresWriting)
    batch = batch_of(task)
    labels = batch["labels"]
    lengths = (labels != -100).sum(1).tolist()
    said = labels.masked_fill(labels == -100, 5)
    assert said.shape[1] > min(lengths)  # some tokens follow an end
    assert metric(task, said, batch) == (0, sum(lengths))
    # A shift by one token: an insertion at the front, and the end is lost.
    late = torch.cat((torch.full_like(said[:, :1], PAD), said[:, :-1]), 1)
    expected = sum(
        levenshtein(late[i, :n].tolist(), labels[i, :n].tolist()) for i, n in enumerate(lengths)
    )
    assert metric(task, late, batch) == (expected, sum(lengths))
    assert 0 < expected < sum(lengths)


def metric(task: SortingTask, said: Tensor, batch: dict[str, Tensor]) -> tuple[float, int]:
    return task.metrics(logits_for(said, task.num_classes), batch)["edit_distance"]


def test_free_running_must_be_a_bool() -> None:
    with pytest.raises(InputError, match=r"free_running: .*got 1\b"):
        load(free_running=1)


class Writer:
    """Returns given tokens for any input."""

    def __init__(self, written: Tensor) -> None:
        self.written = written

    def decode(self, inputs: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        assert options["start_token"] == PAD
        assert options["end_token"] == END
        assert options["should_stop"] is never
        return self.written[:, :max_new_tokens]


NAME = "free_running_edit_distance"


def never() -> bool:
    return False


def test_edit_distance_of_generated_sequences() -> None:
    task = load(free_running=True)
    assert isinstance(task, FreeRunningSortingTask)
    batch = batch_of(task, count=3)
    labels = batch["labels"]
    total = int((labels != -100).sum())
    perfect = labels.masked_fill(labels == -100, PAD)
    assert task.writing_metrics(Writer(perfect), batch, never) == {NAME: (0, total)}
    # The end comes first: all other tokens are missing. Tokens after an end do not count.
    nothing = torch.full_like(perfect, 9)
    nothing[:, 0] = END
    assert task.writing_metrics(Writer(nothing), batch, never) == {NAME: (total - 3, total)}
    # No end: the maximum number of tokens, all of them wrong.
    endless = torch.full_like(perfect, PAD)
    length = labels.shape[1]
    assert task.writing_metrics(Writer(endless), batch, never) == {NAME: (3 * length, total)}


def levenshtein(a: list[int], b: list[int]) -> int:
    table = {(-1, -1): 0}
    table |= {(i, -1): i + 1 for i in range(len(a))} | {(-1, j): j + 1 for j in range(len(b))}
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            kept = table[i - 1, j - 1] + (x != y)
            table[i, j] = min(kept, table[i - 1, j] + 1, table[i, j - 1] + 1)
    return table[len(a) - 1, len(b) - 1]


def test_edit_distance_equals_the_recurrence() -> None:
    generator = torch.Generator().manual_seed(0)
    written = torch.randint(3, (60, 9), generator=generator)
    reference = torch.randint(3, (60, 7), generator=generator)
    lengths = torch.randint(0, 10, (60,), generator=generator)
    others = torch.randint(0, 8, (60,), generator=generator)
    expected = [
        levenshtein(w[:n].tolist(), r[:m].tolist())
        for w, r, n, m in zip(written, reference, lengths, others, strict=True)
    ]
    assert edit_distance(written, reference, lengths, others).tolist() == expected


def test_outputs_of_another_model_are_refused() -> None:
    task = load()
    with pytest.raises(InputError, match="seq2seq"):
        task.loss(torch.zeros(20, task.num_classes), batch_of(task))


@pytest.mark.parametrize("option", sorted(SMALL))
def test_bad_options_are_refused(option: str) -> None:
    with pytest.raises(InputError, match=rf"{option}: .*\b1\b.*got 0\b"):
        load(**{option: 0})
