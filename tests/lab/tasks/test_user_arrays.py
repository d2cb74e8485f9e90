"""Tests of tasks from user arrays: shapes, labels, splits and clear error messages."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputWarning
from rifflemix.lab.tasks import card_of
from rifflemix.lab.tasks.core.numbers import NumberTask

SPLITS = ("train", "validation", "test")
RANDOM = np.random.default_rng(7)


def samples(task: rm.Task) -> list[tuple[Any, Any]]:
    return [task.split(name)[i] for name in SPLITS for i in range(len(task.split(name)))]


def test_arrays_of_token_ids() -> None:
    x = RANDOM.permutation(40 * 5).reshape(40, 5)
    y = np.arange(40) % 3
    task = rm.Task.from_arrays(x, y, seed=3)
    assert (task.input_kind, task.vocab_size, task.max_length) == ("tokens", 200, 5)
    assert (task.num_classes, task.padding, task.metric) == (3, False, "accuracy")
    by_input = {tuple(inputs.tolist()): label for inputs, label in samples(task)}
    assert by_input == {
        tuple(row): label for row, label in zip(x.tolist(), y.tolist(), strict=True)
    }
    batch = task.collate([task.split("test")[i] for i in range(4)])
    assert batch["inputs"].dtype == batch["labels"].dtype == torch.int64
    assert "key_padding_mask" not in batch
    assert [len(task.split(name)) for name in SPLITS] == [24, 8, 8]
    again = rm.Task.from_arrays(torch.from_numpy(x), y.tolist(), seed=3)
    assert again.fingerprint() == task.fingerprint()
    assert rm.Task.from_arrays(x, y, seed=4).fingerprint() != task.fingerprint()
    assert rm.Task.from_arrays(x, y[::-1].copy(), seed=3).fingerprint() != task.fingerprint()
    assert card_of(pickle.loads(pickle.dumps(task))) == card_of(task)


def test_lengths_become_padding() -> None:
    x = np.tile(np.arange(7), (30, 1)) + np.arange(30)[:, None]
    lengths = 1 + np.arange(30) % 7
    task = rm.Task.from_arrays(x, np.arange(30) % 2, lengths=lengths)
    assert (task.padding, task.max_length) == (True, 7)
    for inputs, _ in samples(task):
        first = int(inputs[0])
        assert inputs.tolist() == list(range(first, first + lengths[first]))
    batch = task.collate([(torch.tensor([5, 6]), 0), (torch.tensor([8]), 1)])
    assert batch["key_padding_mask"].tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize("width", [0, 3], ids=["numbers", "vectors"])
def test_sequences_of_numbers_are_not_changed(width: int) -> None:
    x = RANDOM.normal(size=(20, 6, width) if width else (20, 6))
    task = rm.Task.from_arrays(x, [f"class {i % 2}" for i in range(20)])
    assert (task.input_kind, task.num_features) == ("vectors", max(width, 1))
    inputs, _ = task.split("train")[0]
    assert (inputs.dtype, tuple(inputs.shape)) == (torch.float32, (6, max(width, 1)))
    rows = x.reshape(20, 6, -1).astype(np.float32)
    assert any(np.array_equal(inputs.numpy(), row) for row in rows)


def test_sequences_of_unequal_length() -> None:
    x = [RANDOM.normal(size=(n, 2)) for n in range(1, 21)]
    task = rm.Task.from_arrays(x, np.arange(20) % 2 == 0)
    assert (task.num_features, task.max_length, task.padding) == (2, 20, True)
    assert sorted(len(inputs) for inputs, _ in samples(task)) == list(range(1, 21))
    with pytest.warns(InputWarning, match=r"5 of 20"):
        cut = rm.Task.from_arrays(x, np.arange(20) % 2, max_length=15)
    assert cut.max_length == 15
    assert re.search(r"\b5 of 20\b.*\b15\b", cut.split_note)
    counts = rm.Task.from_arrays([[1] * n for n in range(1, 21)], np.arange(20) % 2)
    assert (counts.input_kind, counts.vocab_size) == ("tokens", 2)


def test_texts_are_read_as_bytes() -> None:
    words = [f"é{i}" * (1 + i % 3) for i in range(20)]
    task = rm.Task.from_arrays(words, np.arange(20) % 2)
    assert (task.vocab_size, task.padding) == (257, True)
    read = {bytes((inputs.numpy() - 1).astype(np.uint8)).decode() for inputs, _ in samples(task)}
    assert read == set(words)


@pytest.mark.parametrize("kind", ["uint8", "float64"])
@pytest.mark.parametrize("channels", [0, 3], ids=["gray", "rgb"])
def test_images_are_cut_to_normalised_patches(kind: str, channels: int) -> None:
    shape = (30, 6, 9, channels) if channels else (30, 6, 9)
    if kind == "float64" and not channels:
        shape = (*shape, 1)
    x = RANDOM.integers(0, 256, shape).astype(kind)
    task = rm.Task.from_arrays(x, np.arange(30) % 3, patch_size=3)
    features = 9 * max(channels, 1)
    assert (task.input_kind, task.max_length, task.num_features) == ("vectors", 6, features)
    train = torch.stack([task.split("train")[i][0] for i in range(len(task.split("train")))])
    pixels = train.reshape(-1, max(channels, 1)).double()
    torch.testing.assert_close(pixels.mean(0), torch.zeros_like(pixels[0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(pixels.std(0, correction=0), torch.ones_like(pixels[0]))
    whole = rm.Task.from_arrays(x, np.arange(30) % 3, layout="image")
    image, _ = whole.split("train")[0]
    assert tuple(image.shape) == (max(channels, 1), 6, 9)
    patches = image.unfold(1, 3, 3).unfold(2, 3, 3).permute(1, 2, 3, 4, 0).reshape(6, -1)
    torch.testing.assert_close(task.split("train")[0][0], patches)


def test_smallest_patches_with_at_most_256_tokens_are_chosen() -> None:
    for size, patch in ((8, 1), (28, 2), (64, 4)):
        x = np.zeros((9, size, size), dtype=np.uint8)
        x[:, 0, 0] = np.arange(9)
        task = rm.Task.from_arrays(x, np.arange(9) % 2)
        assert task.options["patch_size"] == patch


# Labels


def test_floats_are_numbers_and_not_classes() -> None:
    x, y = RANDOM.normal(size=(50, 4)), np.linspace(0.9, 5.8, 50)
    task = rm.Task.from_arrays(x, y)
    assert isinstance(task, NumberTask)
    assert (task.metric, task.higher_is_better, task.num_classes) == ("rmse", False, 1)
    assert card_of(task).output == "number"
    labels = [label for _, label in samples(task)]
    assert sorted(labels) == pytest.approx(sorted(y))
    train = [task.split("train")[i][1] for i in range(len(task.split("train")))]
    assert task.target_mean == pytest.approx(np.mean(train))
    assert task.target_std == pytest.approx(np.std(train))
    batch = task.collate([(torch.zeros(4, 1), 0.9), (torch.zeros(4, 1), 1.7)])
    found = batch["labels"] * task.target_std + task.target_mean
    assert found.tolist() == pytest.approx([0.9, 1.7])


@pytest.mark.parametrize("offset", [0.0, 2_459_000.5, 1.7e9])
def test_large_offset_of_the_targets_does_not_change_the_error(offset: float) -> None:
    """Use days and seconds as offsets: float32 rounds these to quarters and minutes."""
    x, y = RANDOM.normal(size=(60, 4, 3)), RANDOM.normal(size=60)
    task = rm.Task.from_arrays(x, offset + y)
    assert isinstance(task, NumberTask)
    split = task.split("test")
    batch = task.collate([split[i] for i in range(len(split))])
    wanted = np.array([split[i][1] for i in range(len(split))]) - task.target_mean
    assert len(set(batch["labels"].tolist())) == len(split)
    sums = task.metrics(torch.zeros(len(split), 1), batch)
    assert sums["mae"][0] == pytest.approx(np.abs(wanted).sum(), rel=1e-5)


@pytest.mark.parametrize("metric", ["rmse", "mse", "mae"])
@pytest.mark.parametrize("targets", [1, 3])
def test_the_deviation_of_an_error_gives_its_standard_error(targets: int, metric: str) -> None:
    """Compare with the spread of the error over many test splits of one model."""
    y = RANDOM.normal(size=(40, targets)) * [1.0, 4.0, 0.1][:targets]
    task = rm.Task.from_arrays(RANDOM.normal(size=(40, 3)), y, kind="regression")
    assert isinstance(task, NumberTask)
    one, found = replace(task, metric=metric), []
    for _ in range(400):
        errors = RANDOM.exponential(size=(200, targets)) + RANDOM.exponential(size=(200, 1))
        labels = torch.zeros(200, *one.target_shape)
        sums = one.metrics(torch.tensor(errors, dtype=torch.float32), {"labels": labels})
        means = {name: total / count for name, (total, count) in sums.items()}
        summary = means | one.summarise(means)
        found.append((summary[metric], summary[f"{metric}_deviation"] / 200**0.5))
    values, errors_of = np.array(found).T
    assert errors_of.mean() == pytest.approx(values.std(), rel=0.1)


def test_many_targets_have_no_standard_error() -> None:
    task = rm.Task.from_arrays(RANDOM.normal(size=(40, 3)), RANDOM.normal(size=(40, 33)))
    sums = task.metrics(torch.zeros(5, 33), {"labels": torch.ones(5, 33)})
    means = {name: total / count for name, (total, count) in sums.items()}
    assert not any(name.endswith("_deviation") for name in task.summarise(means))


def test_a_classification_refuses_labels_with_a_fraction() -> None:
    task = rm.Task.from_arrays(RANDOM.normal(size=(20, 4)), np.arange(20) % 2)
    with pytest.raises(rm.InputError, match=r"labels: .*got 0\.9\b"):
        task.collate([(torch.zeros(4, 1), 0.9), (torch.zeros(4, 1), 1.7)])


def test_metrics_of_numbers_equal_their_definitions() -> None:
    task = rm.Task.from_arrays(RANDOM.normal(size=(40, 3)), 100 + 5 * RANDOM.normal(size=40))
    assert isinstance(task, NumberTask)
    y = torch.tensor([97.0, 101.5, 108.0, 99.0, 90.0])
    found = torch.tensor([98.0, 100.0, 103.0, 99.5, 95.0])
    outputs = ((found - task.target_mean) / task.target_std).unsqueeze(1)

    def labels(part: slice) -> dict[str, torch.Tensor]:
        return {"labels": (y[part] - task.target_mean) / task.target_std}

    sums: dict[str, tuple[float, int]] = {}
    for part in (slice(0, 2), slice(2, 5)):  # in two batches
        for name, (total, count) in task.metrics(outputs[part], labels(part)).items():
            before = sums.get(name, (0.0, 0))
            sums[name] = (before[0] + total, before[1] + count)
    means = {name: total / count for name, (total, count) in sums.items()}
    summary = task.summarise(means)
    error = (found - y).double()
    assert means["mae"] == pytest.approx(error.abs().mean().item(), rel=1e-5)
    assert summary["rmse"] == pytest.approx(error.square().mean().sqrt().item(), rel=1e-5)
    spread = (y - y.mean()).double().square().sum()
    assert summary["r2"] == pytest.approx(1 - (error.square().sum() / spread).item(), rel=1e-4)
    same = {"labels": torch.full((3,), 7.0)}
    equal = {n: t / c for n, (t, c) in task.metrics(torch.zeros(3, 1), same).items()}
    assert "r2" not in task.summarise(equal)


KINDS = {
    "ints as numbers": (np.arange(30), "regression", True),
    "whole floats as classes": (np.arange(30) % 3.0, "classification", False),
    "bools": (np.arange(30) % 2 == 0, "auto", False),
    "texts": ([f"c{i % 4}" for i in range(30)], "auto", False),
    "a column": ((np.arange(30) % 2)[:, None], "auto", False),
    "bfloat16": (torch.arange(30).to(torch.bfloat16) / 4, "auto", True),
}


@pytest.mark.parametrize(("y", "kind", "is_number"), KINDS.values(), ids=KINDS)
def test_kinds_of_labels(y: Any, kind: str, is_number: bool) -> None:
    task = rm.Task.from_arrays(RANDOM.normal(size=(30, 4)), y, kind=kind)
    assert isinstance(task, NumberTask) == is_number


X = RANDOM.normal(size=(12, 4))
Y = np.arange(12) % 2
NAN, HUGE = X.copy(), X.copy()
NAN[5, 2], HUGE[7, 1] = np.nan, 1e300
WITH_NONE = X.astype(object)
WITH_NONE[5, 2] = None


class Table:
    """Data frame of several types that iterates over its column names."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[str]:
        return iter(["name", "age"])

    def to_numpy(self) -> Any:
        return np.array([["a", 1]] * 12, dtype=object)


WRONG: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "NaN": (NAN, Y, {}, r"x: .*got nan.*\b5\b"),
    "too large": (HUGE, Y, {}, r"x: .*got 1e.*\b300\b.*\b7\b"),
    "negative": (np.arange(-1, 23).reshape(12, 2), Y, {}, r"x: .*\b0\b.*got -1\b.*\b0\b"),
    "64 bits and a sign": ([[2**63], [-1]] * 6, Y, {}, r"\b0\b.*got 9.22e.*\b18\b"),
    "64 bits and few": ([[2**63 + 5, 1], [1]] * 6, Y, {}, r"\b0\b.*got 9.22e"),
    "one axis": (X[:, 0], Y, {}, r"\(M, N\).*None"),
    "nothing": ([], [], {}, "x:"),
    "a text": ("text", Y, {}, "x: .*got 'text'"),
    "a table of objects": (Table(), Y, {}, r"x: .*got 'a'.*\b0\b"),
    "None among numbers": (WITH_NONE, Y, {}, r"got None.*\b5\b"),
    "None among texts": ([*"abcdefghijk", None], Y, {}, r"got None.*\b11\b"),
    "NaN among texts": ([*"abcdefg", np.nan, *"ijkl"], Y, {}, r"got nan.*\b7\b"),
    "objects": ([{"a": 1}] * 12, Y, {}, r"^x: .*texts.*\b0\b"),
    "unequal rows": ([[[1.0], [2.0, 3.0]]] * 12, Y, {}, r"^x: .*texts.*\b0\b"),
    "empty sample": ([[1]] * 11 + [[]], Y, {}, r"^x: .*token.*\b11\b"),
    "features": ([np.ones((2, 2))] * 11 + [np.ones((3, 3))], Y, {}, r"x: .*got \[\(2,\), \(3,\)\]"),
    "vectors of ints": (np.full((12, 4, 2), 999), Y, {}, r"^x: .*\b255\b"),
    "channels first": (np.ones((12, 3, 8, 9)), Y, {}, r"x\.transpose\(0, 2, 3, 1\)"),
    "too long": (np.ones((12, 70_000)), Y, {}, r"\b65,536\b.*got 70,000\b"),
    "few labels": (X, Y[:5], {}, r"^y: .*\b12 labels\b.*\(5,\)"),
    "unequal labels": (X, [[1], [2, 3]] * 6, {}, "y:"),
    "no label": (X, [*Y[:11], None], {}, r"got None.*\b11\b"),
    "mixed labels": (X, ["a", *Y[1:]], {}, "y: .*got 'a'"),
    "65 bits": (X, [2**63, -1] * 6, {}, r"^y: .*\b64 bits\b.*got 922.*\b0\b"),
    "NaN label": (X, [*[0.5] * 11, np.nan], {}, r"got nan.*\b11\b"),
    "one class": (X, Y * 0, {}, r"y: .*got 0\b"),
    "one number": (X, Y * 0.0, {}, r"y: .*got 0\b"),
    "all different": (X, np.arange(12), {}, "kind='regression'"),
    "fractions": (X, Y / 3, {"kind": "classification"}, r"^y: .*'classification'.*\b1\b"),
    "texts as numbers": (X, list("ab" * 6), {"kind": "regression"}, "y: .*got 'a'"),
    "infinite class": (
        X, np.where(Y, np.inf, 0.0), {"kind": "classification"}, "got inf",
    ),
    "inexact class": (
        X, np.where(Y, 2.0**60, 0.0), {"kind": "classification"}, r"^y: .*got 1\.15",
    ),
    "kind": (X, Y, {"kind": "regress"}, "kind: .*regression.*got 'regress'"),
    "lengths": (X, Y, {"lengths": [4] * 11 + [5]}, r"lengths: .*\b1\b.*\b4\b.*got 5\b.*\b11\b"),
    "unequal lengths": (X, Y, {"lengths": [[1], [2, 3]]}, r"lengths: .*\b12\b"),
    "zero length": (X, Y, {"lengths": [0] + [4] * 11}, r"lengths: .*\b1\b.*\b4\b.*got 0\b"),
    "max_length": (X, Y, {"max_length": 0}, r"max_length: .*\b1\b"),
    "patch of tokens": (X, Y, {"patch_size": 2}, "^patch_size "),
    "patch size": (np.ones((12, 8, 6, 1)), Y, {"patch_size": 4}, r"patch_size: .*8 .*6, got 4"),
    "name": (X, Y, {"name": ""}, "name:"),
    "shares": (X, Y, {"split": (0.5, 0.2, 0.2)}, r"split: .*\b1\b.*\b0\.9\b"),
    "two shares": (X, Y, {"split": (0.8, 0.2)}, r"split: .*\b0\b"),
    "zero share": (X, Y, {"split": (0.8, 0.2, 0)}, r"split: .*\b0\b"),
    "split name": (X, Y, {"split": ["train"] * 11 + ["tset"]}, "test.*got 'tset'"),
    "no test": (X, Y, {"split": ["train", "validation"] * 6}, "split:"),
    "split key": (X, Y, {"split": {"training": [0]}}, "split: .*got 'training'"),
    "twice": (X, Y, {"split": {"train": [0, 1], "validation": [2], "test": [1]}}, "1 2 times"),
    "index": (X, Y, {"split": {"train": [0], "test": [12]}}, r"\b0\b.*\b11\b.*got 12\b"),
    "unseen class": (
        X, Y, {"split": {"train": [0, 2], "validation": [4], "test": [1]}},
        "split: .*'1'",
    ),
    "few groups": (X, Y, {"groups": Y}, r"groups: .*\b3\b.*got 2\b"),
    "group count": (X, Y, {"groups": [1, 2, 3]}, r"groups: .*\b12\b"),
    "leaking group": (
        X, Y,
        {"groups": list("abcdefghijka"), "split": {"train": range(8), "validation": [8, 9],
                                                   "test": [10, 11]}},
        r"groups: .*\b11\b",
    ),
    "unequal split": (X, Y, {"split": {"train": [[0], [1, 2]]}}, "^split train: "),
    "empty split": (X, Y, {"split": {}}, "split:"),
    "split of nothing": (X, Y, {"split": np.array(3)}, r"split: .*\b0\b"),
    "unequal groups": (X, Y, {"groups": [[1], [2, 3]]}, r"groups: .*\b12\b"),
    "masked": (np.ma.masked_greater(X, 0.0), Y, {}, "arrays:"),
    "seed": (X, Y, {"seed": -1}, r"seed: .*\b0\b"),
    "image of numbers": (
        np.ones((12, 4, 4, 1)) * np.arange(12).reshape(12, 1, 1, 1), np.linspace(0, 1, 12),
        {"layout": "image"}, "'sequence'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("x", "y", "options", "message"), WRONG.values(), ids=WRONG)
def test_errors_are_one_sentence(x: Any, y: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message) as caught:
        rm.Task.from_arrays(x, y, **options)
    assert "\n" not in str(caught.value)


def test_sparse_matrix_is_refused_with_advice() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    message = r"x: .*got csr_matrix.*x\.toarray\(\)"
    with pytest.raises(rm.InputError, match=message):
        rm.Task.from_arrays(sparse.csr_matrix(np.eye(12)), Y)


def test_data_frame_with_numbers_of_dtype_object() -> None:
    """Columns have dtype object after a query or if a table mixes types."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(12), "b": X[:, 0], "c": Y == 0})
    task = rm.Task.from_arrays(frame.astype(object), Y)
    assert task.fingerprint() == rm.Task.from_arrays(frame.astype(float), Y).fingerprint()
    counts = rm.Task.from_arrays(frame[["a"]].astype(object), Y)
    assert (counts.input_kind, counts.vocab_size) == ("tokens", 12)
    texts = pandas.Series([f"t{i}" for i in range(11)] + [None], dtype=object)
    with pytest.raises(rm.InputError, match=r"x: .*got None.*\b11\b"):
        rm.Task.from_arrays(texts, Y)
