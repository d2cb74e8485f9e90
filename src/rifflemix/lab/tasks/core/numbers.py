"""Tasks with several targets per sample: regression, and any number of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.base import Batch, Sample, Task
from rifflemix.lab.tasks.core.card import TaskRecord
from rifflemix.lab.tasks.core.kinds import (
    MULTILABEL,
    OF_CLASS,
    REGRESSION,
    Kind,
    f1_of_class,
    multilabel_scores,
)

LOSSES = ("mse", "mae")

_MOST_JOINT = 32  # targets with a standard error; it needs a moment per pair of targets


@dataclass(frozen=True, eq=False)
class NumberTask(Task):
    """Regression task with one or several numbers per sample.

    Model outputs are standardized with `target_mean` and `target_std` of the training split.
    Metrics are in the units of the data. With several targets, each metric is the mean over the
    targets, as in scikit-learn.

    Attributes:
        target_mean: Mean of the training targets, or a tuple with one mean per target.
        target_std: Standard deviation of the training targets, or a tuple.
        loss_kind: Training loss, "mse" or "mae".
    """

    of_kind: ClassVar[Kind] = REGRESSION
    _deviation_of: ClassVar[Mapping[str, str]] = {"rmse": "mse", "mse": "mse", "mae": "mae"}

    target_mean: float | tuple[float, ...] = 0.0
    target_std: float | tuple[float, ...] = 1.0
    loss_kind: str = "mse"

    def __post_init__(self) -> None:
        check_choice("loss", self.loss_kind, LOSSES)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples into a batch with standardized labels (B,) or (B, ..., T) float32."""
        batch = self.stack([inputs for inputs, _ in samples])
        return {**batch, "labels": self.deviations(samples)}

    def record(self) -> TaskRecord:
        """Return the record that predictions need, with the scale of the targets."""
        return replace(
            super().record(),
            target_mean=self.target_mean,
            target_std=self.target_std,
            target_shape=self.target_shape,
        )

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the targets of a sample. Empty for one number."""
        return (self.num_classes,) if isinstance(self.target_mean, tuple) else ()

    def deviations(self, samples: Sequence[Sample]) -> Tensor:
        """Return the standardized targets of samples, float32.

        Standardizes in float64: in float32, large targets such as times in seconds lose precision.
        """
        numbers = torch.from_numpy(np.array([target for _, target in samples], dtype=np.float64))
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in self._scale)
        return ((numbers - mean) / std).float()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute the mean squared or absolute error of standardized outputs (B, targets)."""
        found, wanted = self._numbers(outputs, batch), batch["labels"]
        if self.loss_kind == "mse":
            return functional.mse_loss(found, wanted)
        return functional.l1_loss(found, wanted)

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Compute sum and count of "loss", "mse", "mae" and moments.

        "mse" and "mae" are in the units of the data. The moments of targets and errors are for
        `summarise` and are not displayed.
        """
        count = len(batch["labels"])
        target = self._columns(batch["labels"].double())
        scale = torch.tensor(self._scale[1], dtype=torch.float64, device=target.device)
        error = (self._columns(self._numbers(outputs, batch).double()) - target) * scale
        rows, columns = error.shape
        sizes = self._sizes(error.reshape(count, -1, columns), batch)
        found = {
            "loss": (float(self.loss(outputs, batch).item()) * count, count),
            **{name: (float(s.sum().item()) / columns, rows) for name, s in sizes.items()},
        }
        moments = {"_target": target, "_target_square": target.square()}
        if columns > 1:
            moments |= {f"_{name}": size.flatten(0, 1) for name, size in sizes.items()}
        for name, values in moments.items():
            for column, total in enumerate(values.sum(dim=0).tolist()):
                found[_moment(name, column)] = (total, rows)
        return found | self._joint(sizes)

    def _sizes(self, error: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the size of each error (B, rows, T) for the metrics that are means of sizes."""
        return {"mse": error.square(), "mae": error.abs()}

    def _joint(self, sizes: Mapping[str, Tensor]) -> dict[str, tuple[float, int]]:
        """Compute moments of the errors of samples, for the standard error."""
        size = sizes.get(self._deviation_of.get(self.metric, ""))
        if size is None or size.shape[2] > _MOST_JOINT:
            return {}
        of_sample = size.mean(dim=1)
        return {
            f"_joint_{row}_{column}": (total, len(size))
            for row, totals in enumerate((of_sample.T @ of_sample).tolist())
            for column, total in enumerate(totals)
        }

    def summarise(self, means: Mapping[str, float]) -> dict[str, float]:
        """Compute "rmse", "r2" and the standard deviation of the task's metric.

        "rmse" is the root of the mean squared error. "r2" is the share of explained variance, and
        is missing if all targets of a split are equal. The standard deviation is the standard
        error over randomly drawn samples, times the square root of the number of samples. It is
        missing for "r2", and with more than 32 targets.
        """
        columns = range(len(self._errors(means, "mse")))
        squares = self._errors(means, "mse")
        summary = {"rmse": fmean(math.sqrt(square) for square in squares)}
        scales = [self.target_std] if isinstance(self.target_std, float) else self.target_std
        explained = [
            _explained(means, column, squares[column] / scales[column] ** 2) for column in columns
        ]
        if all(share is not None for share in explained):
            summary["r2"] = fmean(share for share in explained if share is not None)
        return summary | self._deviation(means)

    def _deviation(self, means: Mapping[str, float]) -> dict[str, float]:
        """Compute the standard deviation of the task's metric (delta method)."""
        if "_joint_0_0" not in means:
            return {}
        errors = np.array(self._errors(means, self._deviation_of[self.metric]))
        places = range(len(errors))
        joint = np.array([[means[f"_joint_{row}_{column}"] for column in places] for row in places])
        slope = self._slope(errors)
        variance = float(slope @ (joint - np.outer(errors, errors)) @ slope)
        # Rounding can make the variance negative.
        return {f"{self.metric}_deviation": math.sqrt(max(variance, 0.0))}

    def _slope(self, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the derivative of the task's metric by the error of each target."""
        slope = np.full(len(errors), 1 / len(errors))
        if self.metric == "rmse":
            roots = 2 * np.sqrt(errors)
            np.divide(slope, roots, out=slope, where=roots > 0)
        return slope

    def _errors(self, means: Mapping[str, float], name: str) -> list[float]:
        """Return the mean error of each target, for a metric of `_sizes`."""
        if isinstance(self.target_std, float) or len(self.target_std) == 1:
            return [means[name]]
        return [means[_moment(f"_{name}", column)] for column in range(len(self.target_std))]

    @property
    def _scale(self) -> tuple[Any, Any]:
        return self.target_mean, self.target_std

    @staticmethod
    def _columns(numbers: Tensor) -> Tensor:
        """Reshape numbers (B,) or (B, ..., T) to (rows, T)."""
        return numbers.flatten(0, -2) if numbers.dim() > 1 else numbers.unsqueeze(1)

    def _numbers(self, outputs: Tensor, batch: Batch) -> Tensor:
        labels = batch["labels"]
        expected = (len(labels), labels[0].numel())
        if tuple(outputs.shape) != expected:
            what = f"shape (B, {expected[1]}) = {expected}"
            raise bad_argument("outputs", what, tuple(outputs.shape))
        return outputs.float().reshape(labels.shape)


def _moment(name: str, column: int) -> str:
    return f"{name}_{column}" if column else name


def _explained(means: Mapping[str, float], column: int, error: float) -> float | None:
    """Return the explained share of the variance of a standardized target."""
    square = means.get(_moment("_target_square", column), 0.0)
    variance = square - means.get(_moment("_target", column), 0.0) ** 2
    return 1 - error / variance if variance > 1e-9 * square else None


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
        return np.stack(labels) > 0

    def confusion(self, observed: NDArray[Any]) -> None:
        """Return None: a sample has several classes."""

    def _check_labels(self, outputs: Tensor, batch: Batch) -> None:
        expected = tuple(batch["labels"].shape)
        if tuple(outputs.shape) != expected:
            raise bad_argument("outputs", f"logits (B, K) = {expected}", tuple(outputs.shape))
