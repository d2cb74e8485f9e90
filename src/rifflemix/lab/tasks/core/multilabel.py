"""Tasks with any number of labels per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import Batch, Sample, Task
from rifflemix.lab.tasks.core.kinds import MULTILABEL, Kind
from rifflemix.lab.tasks.core.split_scores import OF_CLASS, f1_of_class, multilabel_scores


@dataclass(frozen=True, eq=False)
class MultilabelTask(Task):
    """Prediction of the labels of each sample, independent of each other.

    Outputs are logits (B, K) for labels (B, K) of 0 and 1. A label is predicted if its logit is
    above 0, a probability of 1/2. "accuracy" is the share of correct decisions, "exact_match" the
    share of samples without a wrong decision.
    """

    of_kind: ClassVar[Kind] = MULTILABEL

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples into a batch with labels (B, K) float32."""
        labels = torch.stack([torch.as_tensor(label).float() for _, label in samples])
        return {**self.stack([inputs for inputs, _ in samples]), "labels": labels}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute the mean binary cross-entropy over samples and labels, in float32."""
        self._check_labels(outputs, batch)
        return functional.binary_cross_entropy_with_logits(outputs.float(), batch["labels"])

    def uniform_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute `loss` for targets of 1/2, the extra term of label smoothing."""
        self._check_labels(outputs, batch)
        half = torch.full_like(batch["labels"], 0.5)
        return functional.binary_cross_entropy_with_logits(outputs.float(), half)

    def class_counts(self, split: str) -> list[int] | None:
        """Return None: a sample has several classes."""
        return None

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Compute sum and count of "accuracy", "exact_match" and "loss"."""
        count = len(batch["labels"])
        loss = float(self.loss(outputs, batch).item())  # checks the shape
        is_right = (outputs > 0) == (batch["labels"] > 0)
        number = is_right.shape[1]
        return {
            "accuracy": (float(is_right.sum().item()) / number, count),
            "exact_match": (float(is_right.all(dim=1).sum().item()), count),
            "loss": (loss * count, count),
        }

    def observe(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return labels and probabilities (B, 2 K)."""
        return torch.cat((batch["labels"], outputs.float().sigmoid()), dim=1)

    def score_split(self, observed: NDArray[Any]) -> dict[str, float]:
        """Compute the metrics of `multilabel_scores`."""
        number = self.num_classes
        truths, shares = observed[:, :number] > 0, observed[:, number:]
        found = multilabel_scores(truths, shares)
        if self.metric.startswith(OF_CLASS):
            of = self.class_names.index(self.metric.removeprefix(OF_CLASS))
            found[self.metric] = f1_of_class(truths[:, of], shares[:, of] > 0.5)
        return found

    @property
    def reference_answer(self) -> str:
        """Description of the reference."""
        return "the share of each label"

    def reference_scores(self, split: str) -> dict[str, float]:
        """Return the metrics of the training share of each label as its probability."""
        shares = self._truths("train").mean(axis=0)
        truths = self._truths(split)
        is_right = truths == (shares > 0.5)
        found = {"accuracy": is_right.mean(), "exact_match": is_right.all(axis=1).mean()}
        scores = multilabel_scores(truths, np.tile(shares, (len(truths), 1)))
        return {**{name: float(value) for name, value in found.items()}, **scores}

    def _truths(self, split: str) -> NDArray[np.bool_]:
        samples = self.split(split)
        labels = [np.asarray(samples[index][1]) for index in range(len(samples))]
        truths: NDArray[np.bool_] = np.stack(labels) > 0
        return truths

    def confusion(self, observed: NDArray[Any]) -> None:
        """Return None: a sample has several classes."""

    def _check_labels(self, outputs: Tensor, batch: Batch) -> None:
        expected = tuple(batch["labels"].shape)
        if tuple(outputs.shape) != expected:
            raise bad_argument("outputs", f"logits (B, K) = {expected}", tuple(outputs.shape))
