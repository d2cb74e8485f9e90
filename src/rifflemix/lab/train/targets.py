"""Optional methods of tasks: changed targets in training, and predictions of a whole split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError, bad_argument, require_packages
from rifflemix.lab.train.config import BALANCED, TrainConfig
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.protocols import (
    Augments,
    Batch,
    MixesSamples,
    ScoresSplits,
    SelectsMetric,
    SmoothsLabels,
    TrainableTask,
    WeighsClasses,
)
from rifflemix.lab.train.seeds import derive_seed

_SPLIT_METRICS = ("balanced_accuracy", "f1_macro", "auroc", "average_precision")


def is_split_metric(name: str) -> bool:
    """Return whether a metric comes from `ScoresSplits`. "f1:NAME" is the F1 of a class."""
    return name in _SPLIT_METRICS or name.startswith("f1:")


def needs_scores(task: TrainableTask, split: str) -> bool:
    """Return whether a split needs the metrics of `ScoresSplits`.

    Without scikit-learn, a test split has only the means.
    """
    if not scores_splits(task):
        return False
    if is_split_metric(task.metric):
        return True
    return split not in ("train", "validation") and find_spec("sklearn") is not None


def scores_splits(task: object) -> bool:
    """Return whether the class that defines `metrics`, or a subclass of it, defines `observe`.

    The `observe` of a base class may not fit the outputs of a task with other metrics.
    """
    for kind in type(task).__mro__:
        if "observe" in vars(kind):
            return True
        if "metrics" in vars(kind):
            return False
    return False


class Observed:
    """Rows that a task keeps of each batch.

    Args:
        engine: processes of the run.
        is_needed: False to keep no rows.

    Attributes:
        counts: False while a batch repeats a sample and must not count.
        rows: rows of each batch; after `scores`, of all processes.
        is_gathered: True if `rows` are of all processes.
    """

    def __init__(self, engine: Engine, *, is_needed: bool) -> None:
        self.engine = engine
        self.is_needed = is_needed
        self.counts = True
        self.rows: list[NDArray[Any]] = []
        self.is_gathered = False

    def add(self, task: TrainableTask, outputs: Tensor, batch: Batch) -> None:
        """Keep the rows of a batch."""
        if self.is_needed and self.counts and isinstance(task, ScoresSplits):
            self.rows.append(task.observe(outputs, batch).cpu().numpy())

    def scores(self, task: TrainableTask) -> Mapping[str, float]:
        """Compute the metrics over the rows of all processes."""
        if not self.is_needed or not isinstance(task, ScoresSplits):
            return {}
        rows = self._of_all_processes()
        return task.score_split(rows) if len(rows) else {}

    def confusion(self, task: TrainableTask) -> list[list[int]] | None:
        """Count by true and predicted class over the rows of all processes."""
        if not self.is_needed or not isinstance(task, ScoresSplits):
            return None
        rows = self._of_all_processes()
        return task.confusion(rows) if len(rows) else None

    def _of_all_processes(self) -> NDArray[Any]:
        if self.engine.processes > 1 and not self.is_gathered:
            found: list[Any] = [None] * self.engine.processes
            torch.distributed.all_gather_object(found, (self.engine.replica, self.rows))
            by_replica = dict(found)  # processes that share samples have equal rows
            self.rows = [row for replica in sorted(by_replica) for row in by_replica[replica]]
            self.is_gathered = True
        return np.concatenate(self.rows) if self.rows else np.empty((0, 0))


_AUGMENT, _MIX = 5, 6  # purposes of derived seeds


_Task = TypeVar("_Task", bound=TrainableTask)


def judged_by(task: _Task, metric: str | None) -> _Task:
    """Return the task with the metric of the training settings; None keeps the task's metric.

    Raises:
        InputError: the task has no metric with this name.
    """
    if metric is None or metric == task.metric:
        return task
    selects: object = task
    if isinstance(selects, SelectsMetric):
        return cast(_Task, selects.with_metric(metric))
    raise bad_argument("metric", f"{task.metric!r} for task {task.name}", repr(metric))


def check_targets(task: TrainableTask, config: TrainConfig) -> None:
    """Check that the task supports label smoothing, class weights and mixing as set.

    Raises:
        InputError: a setting is not supported; the message names the setting.
    """
    no_classes = "its loss is not over classes"
    if config.label_smoothing and not _defines_with_loss(task, "uniform_loss"):
        raise _unsupported("label_smoothing", "0", task, config.label_smoothing, no_classes)
    if config.class_weights is not None:
        if not _defines_with_loss(task, "weighted_loss"):
            raise _unsupported("class_weights", "None", task, config.class_weights, no_classes)
        class_weights(task, config)
    if is_split_metric(task.metric):
        if not scores_splits(task):
            raise bad_argument("metric", f"a mean metric for task {task.name}", repr(task.metric))
        require_packages(f"metric {task.metric}", "compare", "sklearn")
    for name in ("mixup", "cutmix"):
        if getattr(config, name) and not isinstance(task, MixesSamples):
            reason = "only whole images can be mixed (layout 'image')"
            raise _unsupported(name, "0", task, getattr(config, name), reason)


def _unsupported(
    name: str, expected: str, task: TrainableTask, got: object, reason: str
) -> InputError:
    return bad_argument(name, f"{expected} for task {task.name}", repr(got), reason)


def _defines_with_loss(task: TrainableTask, method: str) -> bool:
    """Return whether the class that defines `loss` also defines `method`.

    If a subclass overrides only `loss`, the inherited method may not match.
    """
    definition = next((kind for kind in type(task).__mro__ if "loss" in vars(kind)), object)
    return method in vars(definition)


def class_weights(task: TrainableTask, config: TrainConfig) -> Tensor | None:
    """Return the weight of each class (num_classes,), or None if the loss has no weights.

    Raises:
        InputError: the number of weights is wrong, or a sample has several classes.
    """
    if config.class_weights is None or not isinstance(task, WeighsClasses):
        return None
    counts = task.class_counts("train")
    if counts is None:
        reason = "its samples have several classes"
        raise _unsupported("class_weights", "None", task, config.class_weights, reason)
    if config.class_weights == BALANCED:
        present = sum(count > 0 for count in counts)
        # A class without training samples gets weight 0; no label contains it.
        found = [sum(counts) / (present * count) if count else 0.0 for count in counts]
    else:
        found = [float(weight) for weight in config.class_weights]
        if len(found) != len(counts):
            raise bad_argument("class_weights", f"{len(counts)} numbers", f"{len(found)} numbers")
    return torch.tensor(found)


def change_batch(
    task: TrainableTask, config: TrainConfig, batch: Batch, at: Sequence[int]
) -> Batch:
    """Augment and mix a training batch.

    Args:
        task: task with optional methods `augment` and `mix`.
        config: training settings with seed, mixup and cutmix.
        batch: collated batch.
        at: positions of the samples in the data order; the changes depend on them.
    """
    if isinstance(task, Augments):
        batch = task.augment(batch, [derive_seed(config.seed, _AUGMENT, place) for place in at])
    if (config.mixup or config.cutmix) and isinstance(task, MixesSamples):
        seed = derive_seed(config.seed, _MIX, at[0])
        batch = task.mix(batch, seed, mixup=config.mixup, cutmix=config.cutmix)
    return batch


def training_loss(
    task: TrainableTask,
    outputs: Tensor,
    batch: Batch,
    label_smoothing: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Compute the task's loss with label smoothing and class weights.

    The share `label_smoothing` of each label is spread evenly over all classes.

    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7.
    """
    if weights is not None and isinstance(task, WeighsClasses):
        return task.weighted_loss(outputs, batch, weights, label_smoothing)
    loss = task.loss(outputs, batch)
    if not label_smoothing or not isinstance(task, SmoothsLabels):
        return loss
    uniform = task.uniform_loss(outputs, batch)
    return (1.0 - label_smoothing) * loss + label_smoothing * uniform
