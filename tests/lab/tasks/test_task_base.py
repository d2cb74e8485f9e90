"""Tests of the common features of tasks: batches, loss, metrics, fingerprints, pickling."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.tasks.core.builder import content_order

SMALL = {"min_length": 3, "max_length": 30, "num_train": 12, "num_validation": 5, "num_test": 5}


@pytest.fixture(params=["digits", "patches", "listops"])
def task(request: pytest.FixtureRequest) -> Task:
    if request.param == "listops":
        return load_task("listops", **SMALL)
    return load_task("digits", patch_size=2 if request.param == "patches" else 1)


def test_collate_follows_the_interface(task: Task) -> None:
    split = task.split("validation")
    samples = [split[index] for index in range(5)]
    batch = task.collate(samples)
    assert batch["labels"].dtype == torch.int64
    assert batch["labels"].tolist() == [label for _, label in samples]
    longest = max(len(inputs) for inputs, _ in samples)
    assert longest <= task.max_length
    assert ("key_padding_mask" in batch) == task.padding
    if task.input_kind == "tokens":
        assert batch["inputs"].shape == (5, longest)
        assert batch["inputs"].dtype == torch.int64
        assert task.vocab_size is not None
        assert batch["inputs"].min() >= 0
        assert batch["inputs"].max() < task.vocab_size
    else:
        assert batch["inputs"].shape == (5, longest, task.num_features)
        assert batch["inputs"].dtype == torch.float32


def test_padding_is_marked_and_filled() -> None:
    task = load_task("listops", **SMALL)
    samples = [task.split("train")[index] for index in range(12)]
    batch = task.collate(samples)
    assert len({len(tokens) for tokens, _ in samples}) > 1
    for row, mask, (tokens, _) in zip(
        batch["inputs"], batch["key_padding_mask"], samples, strict=True
    ):
        assert mask.tolist() == [position >= len(tokens) for position in range(len(row))]
        assert torch.equal(row[: len(tokens)], tokens)
        assert (row[len(tokens) :] == task.pad_id).all()
        assert (tokens != task.pad_id).all()


def test_loss_and_metrics_equal_a_worked_example() -> None:
    task = load_task("digits")
    batch = {"labels": torch.tensor([3, 0])}
    logits = torch.zeros(2, 10, dtype=torch.bfloat16)
    logits[0, 3] = 2.0
    logits[1, 9] = 1.0
    losses = [math.log(9 + math.exp(2)) - 2, math.log(9 + math.e)]
    loss = task.loss(logits, batch)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(sum(losses) / 2, rel=1e-6)
    metrics = task.metrics(logits, batch)
    assert metrics["accuracy"] == (1.0, 2)
    assert metrics["loss"] == (pytest.approx(sum(losses), rel=1e-6), 2)
    assert task.metric in metrics


@pytest.mark.parametrize("shape", [(2, 9), (3, 10), (2, 1, 10)], ids=str)
def test_outputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    task = load_task("digits")
    batch = {"labels": torch.tensor([3, 0])}
    with pytest.raises(InputError, match=r"outputs: .*\(2, 10\)"):
        task.loss(torch.zeros(shape), batch)
    with pytest.raises(InputError, match="outputs"):
        task.metrics(torch.zeros(shape), batch)


def test_unknown_split(task: Task) -> None:
    with pytest.raises(InputError, match=r"validation.*got 'validate'"):
        task.split("validate")


def test_pickle_round_trip(task: Task) -> None:
    copy = pickle.loads(pickle.dumps(task))
    assert copy.fingerprint() == task.fingerprint()
    inputs, label = task.split("test")[3]
    again, same = copy.split("test")[3]
    assert torch.equal(inputs, again)
    assert label == same


def test_mapped_arrays_pickle_as_paths() -> None:
    task = load_task("listops", **{**SMALL, "num_train": 500})
    content = sum(len(task.split("train")[index][0]) for index in range(500))
    # Rows and paths are pickled; tokens are not.
    rows = 8 * 500
    assert content > 2000
    split = task.split("train")
    assert len(pickle.dumps(split)) < rows + 1500


@pytest.mark.slow  # another process imports everything
def test_data_loader_of_worker_processes() -> None:
    task = load_task("listops", **SMALL)
    loader = DataLoader(
        task.split("train"),
        batch_size=4,
        num_workers=1,
        collate_fn=task.collate,
        multiprocessing_context="forkserver",
    )
    batches = list(loader)
    expected = task.collate([task.split("train")[index] for index in range(4)])
    assert len(batches) == 3
    assert all(torch.equal(batches[0][key], expected[key]) for key in expected)


def test_fingerprint_depends_on_data_and_options() -> None:
    prints = {
        load_task("digits").fingerprint(),
        load_task("digits", patch_size=2).fingerprint(),
        load_task("listops", **SMALL).fingerprint(),
        load_task("listops", seed=1, **SMALL).fingerprint(),
        load_task("listops", **{**SMALL, "num_train": 13}).fingerprint(),
    }
    assert len(prints) == 5
    assert load_task("digits").fingerprint() in prints


def test_content_order_depends_only_on_content() -> None:
    rows = [bytes([value]) for value in range(50)]
    shuffled = [rows[index] for index in np.random.default_rng(0).permutation(50)]
    assert [rows[index] for index in content_order(rows, "a")] == [
        shuffled[index] for index in content_order(shuffled, "a")
    ]
    assert content_order(rows, "a").tolist() != content_order(rows, "b").tolist()
    assert content_order([b"x", b"y", b"x"], "a").tolist() in ([0, 2, 1], [1, 0, 2])
