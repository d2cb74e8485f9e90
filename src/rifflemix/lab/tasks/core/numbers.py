"""Regression tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.base import Batch, Sample, Task

LOSSES = ("mse", "mae")


@dataclass(frozen=True, eq=False)
class NumberTask(Task):
    """Regression task with one number per sample.

    Model outputs are standardized with `target_mean` and `target_std` of the training split.
    Metrics are in the units of the data.

    Attributes:
        target_mean: Mean of the training targets.
        target_std: Standard deviation of the training targets.
        loss_kind: Training loss, "mse" or "mae".
    """

    target_mean: float = 0.0
    target_std: float = 1.0
    loss_kind: str = "mse"

    def __post_init__(self) -> None:
        check_choice("loss", self.loss_kind, LOSSES)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples into a batch with standardized labels (B,) float32."""
        # Class 0 is a dummy label, so that `Task.collate` does the padding.
        batch = super().collate([(inputs, 0) for inputs, _ in samples])
        return {**batch, "labels": self.deviations(samples)}

    def deviations(self, samples: Sequence[Sample]) -> Tensor:
        """Return the standardized targets (B,) float32 of samples.

        Standardizes in float64: in float32, large targets such as times in seconds lose precision.
        """
        numbers = torch.tensor([target for _, target in samples], dtype=torch.float64)
        return ((numbers - self.target_mean) / self.target_std).float()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute the mean squared or absolute error of standardized outputs (B, 1)."""
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
        target = batch["labels"].double()
        error = (self._numbers(outputs, batch).double() - target) * self.target_std
        return {
            "loss": (float(self.loss(outputs, batch).item()) * count, count),
            "mse": (float(error.square().sum().item()), count),
            "mae": (float(error.abs().sum().item()), count),
            "_fourth": (float(error.pow(4).sum().item()), count),
            "_target": (float(target.sum().item()), count),
            "_target_square": (float(target.square().sum().item()), count),
        }

    def summarise(self, means: Mapping[str, float]) -> dict[str, float]:
        """Compute "rmse", "r2" and the standard deviation of the task's metric.

        "rmse" is the root of the mean squared error. "r2" is the share of explained variance, and
        is missing if all targets of a split are equal. The standard deviation is the standard
        error over randomly drawn samples, times the square root of the number of samples.
        """
        summary = {"rmse": math.sqrt(means["mse"])}
        square = means.get("_target_square", 0.0)
        variance = square - means.get("_target", 0.0) ** 2
        if variance > 1e-9 * square:
            summary["r2"] = 1 - means["mse"] / (variance * self.target_std**2)
        if self.metric == "mae":
            summary["mae_deviation"] = _root(means["mse"] - means["mae"] ** 2)
        elif summary["rmse"]:
            spread = _root(means["_fourth"] - means["mse"] ** 2)
            summary["rmse_deviation"] = spread / (2 * summary["rmse"])
        return summary

    def _numbers(self, outputs: Tensor, batch: Batch) -> Tensor:
        expected = (len(batch["labels"]), 1)
        if tuple(outputs.shape) != expected:
            raise bad_argument("outputs", f"shape (B, 1) = {expected}", tuple(outputs.shape))
        return outputs.squeeze(1).float()


def _root(variance: float) -> float:
    """Square root that returns 0 for a variance below zero (rounding error)."""
    return math.sqrt(max(variance, 0.0))
