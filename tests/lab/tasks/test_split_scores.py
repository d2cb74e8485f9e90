"""Tests of metrics of whole splits: equal to scikit-learn, for any batches and padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

import rifflemix as rm
from rifflemix.lab.tasks.core.kinds import class_scores, confusion, multilabel_scores
from rifflemix.lab.tasks.core.numbers import MultilabelTask, NumberTask
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED, TokenLabelTask

RANDOM = np.random.default_rng(0)
CLOSE = pytest.approx


def shares(rows: int, classes: int, *, ties: bool) -> np.ndarray:
    values = RANDOM.random((rows, classes)) + 0.05
    values = np.round(values, 1) if ties else values
    return values / values.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_class_metrics_equal_scikit_learn(classes: int, ties: bool) -> None:
    labels, found = RANDOM.integers(0, classes, 200), shares(200, classes, ties=ties)
    predicted, scores = found.argmax(axis=1), class_scores(labels, found)
    assert scores["balanced_accuracy"] == CLOSE(
        metrics.balanced_accuracy_score(labels, predicted), abs=1e-6
    )
    assert scores["f1_macro"] == CLOSE(metrics.f1_score(labels, predicted, average="macro"))
    if classes == 2:
        area = metrics.roc_auc_score(labels, found[:, 1])
        precision = metrics.average_precision_score(labels, found[:, 1])
    else:
        area = metrics.roc_auc_score(labels, found, multi_class="ovr")
        precision = metrics.average_precision_score(np.eye(classes)[labels], found)
    assert scores["auroc"] == CLOSE(area, abs=1e-12)
    assert scores["average_precision"] == CLOSE(precision, abs=1e-12)


def test_classes_that_are_missing_in_a_split_do_not_change_the_means() -> None:
    labels, found = RANDOM.integers(0, 3, 100), shares(100, 5, ties=False)
    scores = class_scores(labels, found)
    areas = [metrics.roc_auc_score(labels == k, found[:, k]) for k in range(3)]
    assert scores["auroc"] == CLOSE(np.mean(areas), abs=1e-6)
    recalls = [(found.argmax(1) == k)[labels == k].mean() for k in range(3)]
    assert scores["balanced_accuracy"] == CLOSE(np.mean(recalls), abs=1e-6)
    assert "auroc" not in class_scores(np.zeros(4, dtype=np.int64), found[:4])


def test_label_set_metrics_equal_scikit_learn() -> None:
    truths, found = RANDOM.random((150, 4)) < 0.3, RANDOM.random((150, 4))
    scores = multilabel_scores(truths, found)
    assert scores["auroc"] == CLOSE(metrics.roc_auc_score(truths, found), abs=1e-6)
    assert scores["average_precision"] == CLOSE(
        metrics.average_precision_score(truths, found), abs=1e-6
    )
    assert scores["f1_macro"] == CLOSE(metrics.f1_score(truths, found > 0.5, average="macro"))
    truths[:, 0] = False  # a label without positive samples
    assert multilabel_scores(truths, found)["auroc"] == CLOSE(
        metrics.roc_auc_score(truths[:, 1:], found[:, 1:]), abs=1e-6
    )


def test_the_confusion_matrix_equals_scikit_learn() -> None:
    labels, predicted = RANDOM.integers(0, 3, 50), RANDOM.integers(0, 4, 50)
    wanted = metrics.confusion_matrix(labels, predicted, labels=range(4))
    assert confusion(labels, predicted, 4) == wanted.tolist()


def test_errors_of_several_numbers_equal_scikit_learn() -> None:
    y = RANDOM.normal(size=(60, 3)) * [1.0, 10.0, 0.1] + [0.0, 500.0, -3.0]
    task = rm.Task.from_arrays(RANDOM.normal(size=(60, 4)), y)
    assert isinstance(task, NumberTask)
    assert task.kind == "regression"
    found = y + RANDOM.normal(size=y.shape)
    sums: dict[str, tuple[float, int]] = {}
    for part in (slice(0, 7), slice(7, 60)):
        batch = task.collate([(torch.zeros(4, 1), target) for target in y[part]])
        outputs = (torch.tensor(found[part]) - torch.tensor(task.target_mean)) / torch.tensor(
            task.target_std
        )
        for name, (total, count) in task.metrics(outputs.float(), batch).items():
            seen = sums.get(name, (0.0, 0))
            sums[name] = (seen[0] + total, seen[1] + count)
    means = {name: total / count for name, (total, count) in sums.items()}
    means |= task.summarise(means)
    assert means["mae"] == CLOSE(metrics.mean_absolute_error(y, found), rel=1e-5)
    assert means["mse"] == CLOSE(metrics.mean_squared_error(y, found), rel=1e-5)
    assert means["rmse"] == CLOSE(metrics.root_mean_squared_error(y, found), rel=1e-5)
    assert means["r2"] == CLOSE(metrics.r2_score(y, found), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("kind", ["classification", "multilabel", "tokens"])
def test_the_f1_of_a_class_can_select_a_model(kind: str) -> None:
    x = RANDOM.integers(0, 5000, (60, 3))
    y = {"classification": x[:, 0] % 3, "multilabel": x % 2, "tokens": x % 3}[kind]
    task = rm.Task.from_arrays(x, y, kind=kind).with_metric("f1:1")
    assert (task.metric, task.higher_is_better) == ("f1:1", True)
    batch = task.collate([task.split("test")[index] for index in range(12)])
    shape = (12, 3, 3) if kind == "tokens" else (12, 3)
    rows = task.observe(torch.randn(*shape), batch).numpy()
    if kind == "multilabel":
        truths, found = rows[:, 1], rows[:, 4] > 0.5
    else:
        predicted = rows[:, 1] if kind == "tokens" else rows[:, 1:].argmax(axis=1)
        truths, found = rows[:, 0] == 1, predicted == 1
    assert task.score_split(rows)["f1:1"] == CLOSE(metrics.f1_score(truths, found))
    with pytest.raises(rm.InputError, match="f1:7"):
        task.with_metric("f1:7")


def test_padding_and_ragged_lists_give_the_same_token_metrics() -> None:
    lengths = RANDOM.integers(2, 6, 40)
    ragged = [RANDOM.integers(0, 5, length) for length in lengths]
    padded = np.stack([np.pad(row, (0, 6 - len(row))) for row in ragged])
    labels = [row % 2 for row in ragged]
    padded_labels = np.stack([np.pad(row, (0, 6 - len(row)), constant_values=7) for row in labels])
    one = rm.Task.from_arrays(ragged, labels, kind="tokens")
    other = rm.Task.from_arrays(padded, padded_labels, lengths=lengths, kind="tokens")
    assert isinstance(one, TokenLabelTask)
    assert one.fingerprint() == other.fingerprint()
    split = one.split("train")
    samples = [split[index] for index in range(len(split))]
    whole = one.collate(samples)
    outputs = torch.randn(*whole["labels"].shape, 2)
    parts = []
    for index, (_, label) in enumerate(samples):
        batch = one.collate([samples[index]])
        parts.append(one.observe(outputs[index : index + 1, : len(label)], batch))
    rows = np.concatenate(parts)
    assert one.score_split(rows) == one.score_split(one.observe(outputs, whole).numpy())
    truths, found = rows[:, 0], rows[:, 1]
    assert one.score_split(rows)["f1_macro"] == CLOSE(
        metrics.f1_score(truths, found, average="macro")
    )
    assert int((whole["labels"] != UNCOUNTED).sum()) == len(rows)


def test_label_smoothing_of_label_sets_moves_targets_to_one_half() -> None:
    x = RANDOM.normal(size=(30, 4, 2))
    task = rm.Task.from_arrays(x, (x.mean(axis=1) > 0).astype(int), kind="multilabel")
    assert isinstance(task, MultilabelTask)
    batch = task.collate([task.split("train")[index] for index in range(5)])
    logits = torch.randn(5, 2)
    smooth = 0.8 * task.loss(logits, batch) + 0.2 * task.uniform_loss(logits, batch)
    targets = 0.8 * batch["labels"] + 0.1
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    assert smooth.item() == CLOSE(wanted.item(), rel=1e-5)
