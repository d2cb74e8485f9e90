"""Tasks that ask for a number instead of a class."""

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
    """A task that gives a number to each sample.

    A model's output is in units of `target_std` from `target_mean`, both of the training split;
    errors are told in the units of the data.

    Attributes:
        target_mean: mean of the training targets.
        target_std: their deviation.
        loss_kind: what is trained on: "mse" or "mae".
    """

    target_mean: float = 0.0
    target_std: float = 1.0
    loss_kind: str = "mse"

    def __post_init__(self) -> None:
        check_choice("loss", self.loss_kind, LOSSES)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """As of any task; the labels are (B,) float32, in deviations from the mean."""
        # Once with classes that no sample has, so that padding is done in one place.
        batch = super().collate([(inputs, 0) for inputs, _ in samples])
        return {**batch, "labels": self.deviations(samples)}

    def deviations(self, samples: Sequence[Sample]) -> Tensor:
        """The numbers (B,) float32 of samples, in units of `target_std` from `target_mean`.

        They are moved before they are rounded: of a time in seconds float32 keeps minutes only.
        """
        numbers = torch.tensor([target for _, target in samples], dtype=torch.float64)
        return ((numbers - self.target_mean) / self.target_std).float()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Mean squared or absolute error of outputs (B, 1), in deviations of the target."""
        found, wanted = self._numbers(outputs, batch), batch["labels"]
        if self.loss_kind == "mse":
            return functional.mse_loss(found, wanted)
        return functional.l1_loss(found, wanted)

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Sum and count of "loss", of "mse" and "mae" in the units of the data, and moments.

        The moments, of targets and errors, are for `summarise` and not shown.
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
        """The root of the mean squared error, "rmse", and the share of variance explained, "r2".

        No "r2" where all targets of a split are equal. And the deviation of the task's metric: its
        standard error, from samples that are drawn, times the root of their number.
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
    """Of a difference of two rounded numbers, which may be below zero."""
    return math.sqrt(max(variance, 0.0))
