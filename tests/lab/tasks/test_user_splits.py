"""Tests of the splits of user arrays: classes, groups, given splits and duplicates."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputWarning

SPLITS = ("train", "validation", "test")
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(12, 4))
Y = np.arange(12) % 2


def test_splits_are_stratified_by_class() -> None:
    y = np.repeat([0, 1, 2], [100, 50, 10])
    task = rm.Task.from_arrays(RANDOM.normal(size=(160, 3)), y, split=(0.5, 0.3, 0.2))
    counts = [
        np.bincount([task.split(name)[i][1] for i in range(len(task.split(name)))])
        for name in SPLITS
    ]
    assert [count.tolist() for count in counts] == [[50, 25, 5], [30, 15, 3], [20, 10, 2]]
    assert "50 / 30 / 20 % train / validation / test" in task.split_note


@pytest.mark.filterwarnings("ignore:task arrays:rifflemix.errors.InputWarning")
def test_a_rare_class_is_for_training_first() -> None:
    y = np.array([0] * 20 + [1] + [2] * 2)
    task = rm.Task.from_arrays(RANDOM.normal(size=(23, 3)), y)
    labels = {
        name: [task.split(name)[i][1] for i in range(len(task.split(name)))] for name in SPLITS
    }
    assert 1 in labels["train"]
    assert sorted(labels["train"] + labels["validation"]).count(2) == 2


def test_split_sizes_are_kept_with_many_rare_classes() -> None:
    """Use classes of two samples, or a small training share; rounding must even out."""
    for y, split, expected in (
        (np.repeat(np.arange(30), 2), (0.6, 0.2, 0.2), [30, 15, 15]),
        (np.arange(60) % 2, (0.02, 0.49, 0.49), [2, 29, 29]),
    ):
        task = rm.Task.from_arrays(RANDOM.normal(size=(60, 3)), y, split=split)
        assert [len(task.split(name)) for name in SPLITS] == expected


@pytest.mark.parametrize("seed", range(4))
def test_groups_stay_together_and_split_sizes_are_kept(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = random.integers(0, 60, 600)
    x = groups[:, None] + np.zeros((600, 2), dtype=np.int64)
    x[:, 1] = np.arange(600)
    task = rm.Task.from_arrays(x, random.integers(0, 2, 600), groups=groups, seed=seed)
    seen = {
        name: {int(task.split(name)[i][0][0]) for i in range(len(task.split(name)))}
        for name in SPLITS
    }
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]
    for name, share in zip(SPLITS, (0.6, 0.2, 0.2), strict=True):
        assert len(task.split(name)) == pytest.approx(600 * share, abs=20)
    assert "whole groups" in task.split_note


def test_outputs_of_another_shape_are_refused() -> None:
    task = rm.Task.from_arrays(X, np.linspace(0, 1, 12))
    batch = task.collate([task.split("train")[index] for index in range(2)])
    for shape in ((2,), (2, 3), (1, 1)):
        for measure in (task.loss, task.metrics):
            with pytest.raises(rm.InputError, match=r"outputs: .*\(2, 1\)"):
                measure(torch.zeros(shape), batch)


def test_every_split_has_a_group() -> None:
    """Check two small last groups: each would go to validation, because it lacks their class."""
    groups = np.array([0] * 10 + [1] * 10 + [2, 3])
    y = np.array([0] * 10 + [1] * 10 + [0, 1])
    task = rm.Task.from_arrays(np.arange(22)[:, None], y, groups=groups)
    assert [len(task.split(name)) for name in SPLITS] == [20, 1, 1]


def test_groups_may_be_of_several_types() -> None:
    x, groups = np.arange(12)[:, None], np.array(["a", 1, None, 2.5] * 3, dtype=object)
    task = rm.Task.from_arrays(x, Y, groups=groups)
    parts = [
        {groups[int(task.split(name)[i][0][0])] for i in range(len(task.split(name)))}
        for name in SPLITS
    ]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 4


@pytest.mark.parametrize("form", ["names", "indices", "masks"])
def test_given_splits_are_kept(form: str) -> None:
    x = np.arange(40).reshape(20, 2)
    names = np.array(["train"] * 12 + ["validation"] * 3 + ["test"] * 5)
    given: Any = {
        "names": names,
        "indices": {name: np.flatnonzero(names == name) for name in SPLITS},
        "masks": {name: names == name for name in SPLITS},
    }[form]
    task = rm.Task.from_arrays(x, np.arange(20) % 2, split=given)
    assert [int(task.split("test")[i][0][0]) // 2 for i in range(5)] == list(range(15, 20))


def test_inputs_in_two_splits_are_reported() -> None:
    x = np.arange(40).reshape(20, 2)
    x[[15, 16]] = x[3]
    split = ["train"] * 12 + ["validation"] * 4 + ["test"] * 4
    told = r"\b1 of validation\b.*\b1 of"
    with pytest.warns(InputWarning, match=f"task arrays: .*{told}"):
        task = rm.Task.from_arrays(x, np.arange(20) % 2, split=split)
    assert re.search(told, task.split_note)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rm.Task.from_arrays(np.arange(40).reshape(20, 2), np.arange(20) % 2, split=split)


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(40, 3).to_sparse(),
        torch.zeros(40, 3, device="meta"),
        torch.tensor(3),
        torch.nested.nested_tensor([torch.zeros(3)] * 40, layout=torch.jagged),
    ],
)
def test_tensors_without_samples_are_refused(values: torch.Tensor) -> None:
    with pytest.raises(rm.InputError, match="expected"):
        rm.Task.from_arrays(values, np.arange(40) % 2)
    with pytest.raises(rm.InputError, match="expected"):
        rm.Task.from_arrays(np.zeros((40, 3)), values)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(256).repeat(2).astype(np.int8),
        np.uint64(2**63) + np.arange(512, dtype=np.uint64) % 9,
        -(2**62) + np.arange(512) % 9,
        10**14 * (np.arange(512) % 9),
    ],
)
def test_integers_of_any_range_are_classes(values: Any) -> None:
    task = rm.Task.from_arrays(np.arange(1024).reshape(512, 2), values)
    split = task.split("train")
    rows = [int(split[i][0][0]) // 2 for i in range(len(split))]
    assert [task.classes[split[i][1]] for i in range(len(split))] == [
        str(values[row]) for row in rows
    ]
    assert task.classes == tuple(map(str, sorted(set(values.tolist()))))
