"""Base classes of tasks: samples and splits, batch layout, loss and metrics."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.card import InputKind, InputSpec, TaskCard
from rifflemix.lab.tasks.core.from_user_data import FromUserData
from rifflemix.lab.tasks.core.kinds import (
    MOST_SHOWN,
    class_scores,
    confusion,
)
from rifflemix.lab.tasks.core.recorded import ChoosesMetric

SPLITS = ("train", "validation", "test")

Sample = tuple[Any, Any]
"""Inputs and label of a sample.

- Inputs: (N,) int64 tokens or (N, F) float32 vectors, or two of these if the task has pairs.
- Label: an int, or (N,) int64.
"""

Batch = dict[str, Tensor]
"""Batch of tensors by name.

- "inputs": (B, N) or (B, N, F). Pairs: (B, 2, N) or (B, 2, N, F).
- "labels": (B,).
- "key_padding_mask", if the task pads: (B, N), or (B, 2, N) for pairs. True marks padding.
"""

Progress = Callable[[str, int, int | None], object]
"""Callback that receives the kind of work, the amount done and the total (None if unknown).

If it returns True, preparation stops after the current part. See `PreparationStopped`.
"""


class PreparationStopped(Exception):
    """Raised when the caller stops the preparation of data.

    The same call continues after the stored parts. Only data that is stored in parts can stop,
    after at least one part. Other data is prepared to the end, because a stop would lose the work.

    Example:
        >>> import rifflemix as rm
        >>> stop = rm.tasks.PreparationStopped("samples", done=3, total=10)
        >>> str(stop)
        'samples: 3 of 10'
    """

    def __init__(self, what: str, done: int, total: int) -> None:
        super().__init__(f"{what}: {done:,} of {total:,}")


class Split(Protocol):
    """Map-style data set that can be pickled for data loader workers.

    Example:
        >>> import rifflemix as rm
        >>> split = rm.tasks.load_task("digits").split("validation")
        >>> len(split)
        355
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """Return one sample."""
        ...

    def digest(self) -> bytes:
        """Return a hash of every input and label, in order."""
        ...


@dataclass(frozen=True, eq=False)
class Task(ChoosesMetric, FromUserData):
    """Loaded classification task.

    Attributes:
        name: Registry name.
        options: Every option that affects the data, including defaults.
        input_kind: "tokens" (ids below `vocab_size`), "vectors" (`num_features` floats each),
            "images", or "graphs" of nodes with `num_features` ids each.
        vocab_size: Number of token ids, including the padding id. None for vectors.
        num_features: Floats per vector. None for tokens.
        num_classes: Number of classes. Labels are 0 to num_classes - 1.
        max_length: Maximum number of tokens per sample.
        padding: True if lengths differ. Batches then contain a `key_padding_mask`.
        split_note: Origin of the validation split.
        data_source: Files, download or generator of the data.
        splits: Splits by name.
        metric: Metric that selects a model.
        higher_is_better: True if a higher value of `metric` is better.
        pad_id: Token id at padded positions.
        num_sequences: 1, or 2 if a sample is a pair.
        further_tests: Additional test splits by name, each with a column in result tables.
        card: Card of a task that is not registered. None if the registry has a card for `name`.
        inputs: Conversion of raw inputs, for predictions. None if raw inputs are token ids or
            vectors, as in the samples.
        classes: Name of each class. Empty if the names are the numbers of the classes.
        image_shape: Channels, height and width of whole images. None for other inputs.
        make_fold: Function from the number of a fold to the task of this fold. None without folds.

    Example:
        >>> import numpy as np, rifflemix as rm
        >>> x = np.random.default_rng(0).normal(size=(100, 12, 3))
        >>> task = rm.Task.from_arrays(x, x.mean(axis=(1, 2)) > 0)
        >>> task.input_kind, task.num_features, task.num_classes
        ('vectors', 3, 2)
    """

    name: str
    options: Mapping[str, Any]
    input_kind: InputKind
    vocab_size: int | None
    num_features: int | None
    num_classes: int
    max_length: int
    padding: bool
    split_note: str
    data_source: str
    splits: Mapping[str, Split]
    metric: str = "accuracy"
    higher_is_better: bool = True
    pad_id: int = 0
    num_sequences: int = 1
    card: TaskCard | None = None
    further_tests: Mapping[str, Split] = field(default_factory=dict)
    inputs: InputSpec | None = None
    classes: tuple[str, ...] = ()
    image_shape: tuple[int, int, int] | None = None
    make_fold: Callable[[int], Task] | None = None

    def for_seed(self, seed: int) -> Task:
        """Return the task of a run: of fold seed mod K if the task has K folds, else the task.

        Args:
            seed: seed of the run.

        Returns:
            The task.
        """
        if self.make_fold is None:
            return self
        task = self.make_fold(seed % self.options["folds"])
        return replace(
            task,
            name=self.name,
            card=self.card,
            options={**self.options, "fold": seed % self.options["folds"]},
            metric=self.metric,
            higher_is_better=self.higher_is_better,
        )

    def split(self, name: str) -> Split:
        """Return the split "train", "validation" or "test", or a split of `further_tests`.

        Args:
            name: "train", "validation", "test", or a name in `further_tests`.

        Returns:
            The samples of the split.
        """
        check_choice("split", name, (*SPLITS, *self.further_tests))
        return self.splits[name] if name in SPLITS else self.further_tests[name]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples into a batch.

        If the task pads, pad to the longest sample.

        Args:
            samples: samples of a split.

        Returns:
            Name -> tensor with the samples in its first dimension.
        """
        labels = _labels([label for _, label in samples], self.num_classes)
        return {**self.stack([inputs for inputs, _ in samples]), "labels": labels}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute the mean cross-entropy in float32 of logits (B, num_classes).

        Args:
            outputs: outputs of the model.
            batch: the batch.

        Returns:
            Scalar.
        """
        self._check_outputs(outputs, batch)
        return functional.cross_entropy(outputs.float(), batch["labels"])

    def uniform_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute `loss` for uniform targets, the extra term of label smoothing.

        Args:
            outputs: outputs of the model.
            batch: the batch.

        Returns:
            Scalar.
        """
        self._check_outputs(outputs, batch)
        return -functional.log_softmax(outputs.float(), dim=1).mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Compute sum and count of "accuracy" and "loss" of logits (B, num_classes).

        If the labels are probabilities (B, num_classes), every class above 0 counts as correct.

        Args:
            outputs: outputs of the model.
            batch: the batch.

        Returns:
            Name -> (sum over the batch, number of terms).
        """
        self._check_outputs(outputs, batch)
        labels = batch["labels"]
        loss = functional.cross_entropy(outputs.float(), labels, reduction="sum")
        correct = is_hit(outputs.argmax(dim=1, keepdim=True), labels).sum()
        return {
            "accuracy": (float(correct.item()), len(labels)),
            "loss": (float(loss.item()), len(labels)),
        }

    def observe(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return labels and probabilities (B, 1 + K) of a batch, for `score_split`.

        Labels that are probabilities have no single class. Their samples are left out.

        Args:
            outputs: outputs of the model.
            batch: the batch.

        Returns:
            One row per sample.
        """
        labels, shares = batch["labels"], outputs.float().softmax(dim=1)
        if labels.dim() == 2:
            return shares.new_empty(0, 1 + self.num_classes)
        return torch.cat((labels.unsqueeze(1).to(shares.dtype), shares), dim=1)

    def score_split(self, observed: NDArray[Any]) -> dict[str, float]:
        """Compute metrics that need all predictions of a split, see `class_scores`.

        Args:
            observed: rows of `observe` for the whole split.

        Returns:
            Name -> value.
        """
        labels = observed[:, 0].astype(np.int64)
        chosen = self._chosen_f1(labels, observed[:, 1:].argmax(axis=1))
        return class_scores(labels, observed[:, 1:]) | chosen

    def confusion(self, observed: NDArray[Any]) -> list[list[int]] | None:
        """Count the samples of a split by true and predicted class.

        Return None for more than `MOST_SHOWN` classes.

        Args:
            observed: rows of `observe` for the whole split.

        Returns:
            Rows of true classes, or None.
        """
        if self.num_classes > MOST_SHOWN:
            return None
        labels, predicted = observed[:, 0].astype(np.int64), observed[:, 1:].argmax(axis=1)
        return confusion(labels, predicted, self.num_classes)

    def class_counts(self, split: str) -> list[int] | None:
        """Count the samples of each class; return None if a sample has several classes.

        Args:
            split: name of a split.

        Returns:
            One number per class, or None.
        """
        samples, counts = self.split(split), [0] * self.num_classes
        targets = getattr(samples, "targets", None)  # without the inputs
        if isinstance(targets, np.ndarray) and targets.ndim == 1 and targets.dtype == np.int64:
            return [int(count) for count in np.bincount(targets, minlength=self.num_classes)]
        for index in range(len(samples)):
            try:
                counts[operator.index(samples[index][1])] += 1
            except TypeError:
                return None
        return counts

    def weighted_loss(
        self, outputs: Tensor, batch: Batch, weights: Tensor, label_smoothing: float
    ) -> Tensor:
        """Compute the cross-entropy with one weight per class, divided by the number of samples.

        Args:
            outputs: outputs of the model.
            batch: the batch.
            weights: (num_classes,) weights.
            label_smoothing: share of each label that is spread over all classes.

        Returns:
            Scalar.
        """
        self._check_outputs(outputs, batch)
        total = functional.cross_entropy(
            outputs.float(),
            batch["labels"],
            weights,
            label_smoothing=label_smoothing,
            reduction="sum",
        )
        return total / len(outputs)

    def fingerprint(self) -> str:
        """Hash the options and all samples. Equal hashes mean equal data.

        The name of a user's file is excluded, so the file can be renamed.

        Returns:
            Hexadecimal hash.
        """
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        options = {name: value for name, value in self.options.items() if name != "data"}
        head = [self.name, options, self.input_kind, self.max_length]
        total = hashlib.blake2b(json.dumps(head, sort_keys=True).encode(), digest_size=16)
        for name in (*SPLITS, *self.further_tests):
            total.update(self.split(name).digest())
        return total.hexdigest()

    def _check_outputs(self, outputs: Tensor, batch: Batch) -> None:
        expected = (len(batch["labels"]), self.num_classes)
        if tuple(outputs.shape) != expected:
            raise bad_argument(
                "outputs", f"logits of shape (B, num_classes) = {expected}", tuple(outputs.shape)
            )


def is_hit(classes: Tensor, labels: Tensor) -> Tensor:
    """Return (B,) bools: whether `classes` (B, k) contain a correct class.

    See `Task.metrics` for the two formats of `labels`.
    """
    if labels.ndim == 2:
        return (labels.gather(1, classes) > 0).any(dim=1)
    return (classes == labels.unsqueeze(1)).any(dim=1)


def _labels(labels: Sequence[Any], num_classes: int) -> Tensor:
    """Convert labels to int64 classes, or stack class probabilities unchanged.

    Raises for fractions, because int64 would silently round them to another class.
    """
    first = labels[0]
    if isinstance(first, Tensor) and first.is_floating_point() and first.shape == (num_classes,):
        return torch.stack(list(labels))
    found = torch.tensor(labels)
    if found.is_floating_point():
        raise bad_argument(
            "labels", "whole numbers, the classes", f"{found[0]:g}", "numbers are a NumberTask"
        )
    return found.to(torch.int64)
