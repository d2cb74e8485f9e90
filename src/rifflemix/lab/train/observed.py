"""Predictions of a whole split, for metrics that are no means over samples."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.protocols import Batch, ScoresSplits, TrainableTask

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
