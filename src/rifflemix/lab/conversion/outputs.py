"""Errors of a converted model and of its layers, and the choice of layers to convert."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.checks import check_integer, check_positive
from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.bench.swap import device_of
from rifflemix.lab.conversion.report import LayerResult
from rifflemix.lab.runs.measure import median, median_seconds
from rifflemix.models.base import call_model, on_device_of
from rifflemix.surgery.distillation import (
    relative_error,
    replaced_only,
    seen_padding,
    swapped_modules,
)

TaskLoss = Callable[[Any, Any], Tensor]
"""Task loss of (outputs of the model, labels of the batch)."""
Match = str | Callable[[Any, Any], Tensor]
MATCHES = ("auto", "kl", "error")


@dataclass(frozen=True)
class Samples:
    """Batches of a conversion.

    Attributes:
        batches: inputs of the model, or pairs (inputs, labels).
        has_labels: whether each batch is a pair.
    """

    batches: Sequence[Any]
    has_labels: bool

    def __len__(self) -> int:
        return len(self.batches)

    def inputs(self, index: int) -> Any:
        """Return the inputs of a batch."""
        return self.batches[index][0] if self.has_labels else self.batches[index]

    def labels(self, index: int) -> Any:
        """Return the labels of a batch, or None."""
        return self.batches[index][1] if self.has_labels else None


@dataclass(frozen=True)
class Objective:
    """Losses of whole models.

    Attributes:
        match: "kl" compares logits, "error" compares tensors, "auto" chooses by the outputs; or a
            function of (outputs of the new model, outputs of the original).
        temperature: divisor of the logits for "kl".
        loss: task loss of (outputs, labels), or None.
    """

    match: Match
    temperature: float
    loss: TaskLoss | None

    def task_loss(self, model: nn.Module, outputs: Any, labels: Any) -> Tensor:
        """Return the task loss of a batch."""
        if self.loss is None:
            raise bad_argument("loss", "a function (outputs, labels) -> loss", None)
        value = self.loss(outputs, on_device_of(model, labels))
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise bad_argument("loss", "a function that returns one number as a tensor", got)
        return value

    def matching(self, found: Any, wanted: Any, padding: Tensor | None) -> Tensor:
        """Return the distance of new outputs from the outputs of the original."""
        if callable(self.match):
            return self.match(found, wanted)
        kind = self.match
        if kind == "auto":
            kind = "kl" if _logits(wanted) is not None else "error"
        new, old = _compared(found), _compared(wanted)
        if padding is not None and padding.shape != new.shape[:2]:
            padding = None
        if kind == "error":
            return relative_error(new, old, padding)
        return kl_divergence(new, old, self.temperature, padding)


def kl_divergence(
    found: Tensor, wanted: Tensor, temperature: float, padding: Tensor | None = None
) -> Tensor:
    """Return the mean KL divergence of softmax(wanted / T) from softmax(found / T), times T^2.

    The factor T^2 keeps the size of the gradients independent of T.
    Source: Hinton, Vinyals and Dean 2015, section 2.

    Args:
        found: logits (..., classes) of the new model.
        wanted: logits (..., classes) of the original.
        temperature: T.
        padding: (B, N) bool, True = padding, or None.
    """
    new = functional.log_softmax(found.float() / temperature, dim=-1)
    old = functional.log_softmax(wanted.detach().float() / temperature, dim=-1)
    each = (old.exp() * (old - new)).sum(-1)
    each = each.flatten() if padding is None else each[~padding]
    return each.mean() * temperature**2


def end_to_end(
    model: nn.Module, original: nn.Module, samples: Samples, index: int, objective: Objective
) -> tuple[Tensor, Any]:
    """Return the matching loss of a batch, and the outputs of the new model."""
    inputs = samples.inputs(index)
    with torch.no_grad():
        wanted = call_model(original, inputs, name="batches")
    first = next(iter(swapped_modules(model).values()), None)
    if first is None:
        found = call_model(model, inputs, name="batches")
        return objective.matching(found, wanted, None), found
    with seen_padding(first) as padding:
        found = call_model(model, inputs, name="batches")
    return objective.matching(found, wanted, padding[-1] if padding else None), found


@dataclass(frozen=True)
class Quality:
    """Means over the validation batches.

    Attributes:
        error: distance of the outputs from the outputs of the original model.
        task_loss: task loss, or None.
    """

    error: float
    task_loss: float | None


@torch.no_grad()
def assess(
    model: nn.Module, original: nn.Module, samples: Samples, objective: Objective
) -> Quality:
    """Measure a model in evaluation mode on all batches."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    errors, losses = [], []
    try:
        for index in range(len(samples)):
            error, outputs = end_to_end(model, original, samples, index, objective)
            errors.append(float(error))
            if objective.loss is not None:
                losses.append(float(objective.task_loss(model, outputs, samples.labels(index))))
    finally:
        for module, training in was_training.items():
            module.training = training
    return Quality(
        math.fsum(errors) / len(errors), math.fsum(losses) / len(losses) if losses else None
    )


def _compared(output: Any) -> Tensor:
    """Return the logits of an output, or its first floating-point tensor."""
    logits = _logits(output)
    if logits is not None:
        return logits
    parts = output.values() if isinstance(output, Mapping) else output
    parts = parts if not isinstance(output, Tensor) else (output,)
    if isinstance(parts, Sequence) or hasattr(parts, "__iter__"):
        for part in parts:
            if isinstance(part, Tensor) and part.is_floating_point():
                return part
    raise InputError(
        f"match: expected outputs with a tensor to compare, got {type(output).__name__}; pass a "
        "function (outputs, original_outputs) -> loss"
    )


def _logits(output: Any) -> Tensor | None:
    value = output.get("logits") if isinstance(output, Mapping) else None
    value = getattr(output, "logits", None) if value is None else value
    return value if isinstance(value, Tensor) else None


@dataclass(frozen=True)
class Budget:
    """Limit for the number of converted layers. At most one attribute is set.

    Attributes:
        keep: number of layers that keep their attention.
        max_error: largest error of the outputs after the stage "layers".
        min_speedup: smallest speed-up of a forward pass.
    """

    keep: int | None = None
    max_error: float | None = None
    min_speedup: float | None = None

    def check(self, layers: int) -> None:
        """Raise InputError unless the budget suits a number of layers."""
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) > 1:
            raise bad_argument(given[1], f"None with {given[0]}", getattr(self, given[1]))
        if self.keep is not None:
            check_integer("keep", self.keep, 0)
            if self.keep >= layers:
                raise bad_argument("keep", f"fewer than the {layers} chosen layers", self.keep)
        if self.max_error is not None:
            check_positive("max_error", self.max_error)
        if self.min_speedup is not None and check_positive("min_speedup", self.min_speedup) <= 1:
            raise bad_argument("min_speedup", "a number over 1", self.min_speedup)


def choose_layers(
    model: nn.Module,
    indices: dict[str, int],
    error: Callable[[], float],
    budget: Budget,
    inputs: Any,
) -> list[LayerResult]:
    """Rank the replaced layers of a model, and choose the layers to convert.

    The layers are converted in the order of their errors, the smallest first.

    Args:
        model: model with all candidate layers replaced and trained.
        indices: name of each replaced module -> index of the layer.
        error: measures the error of the model.
        budget: limit of the conversion.
        inputs: inputs of the model for `min_speedup`.

    Raises:
        InputError: the budget cannot be met.
    """
    names = list(swapped_modules(model))
    alone = {}
    for name in names:
        with replaced_only(model, [name]):
            alone[name] = error()
    order = sorted(names, key=lambda name: alone[name])
    so_far = []
    for count in range(1, len(order) + 1):
        with replaced_only(model, order[:count]):
            so_far.append(error())
    converted = set(order[: _count(model, order, so_far, budget, inputs)])
    return [
        LayerResult(
            indices[name], name, alone[name], rank := order.index(name), so_far[rank],
            name in converted,
        )
        for name in names
    ]  # fmt: skip


def _count(
    model: nn.Module, order: Sequence[str], so_far: Sequence[float], budget: Budget, inputs: Any
) -> int:
    if budget.keep is not None:
        return len(order) - budget.keep
    if budget.max_error is not None:
        fits = [i + 1 for i, error in enumerate(so_far) if error <= budget.max_error]
        if not fits:
            raise bad_argument(
                "max_error", f"at least {so_far[0]:.4g}, the error of one layer", budget.max_error,
                "train the stage layers for more steps",
            )  # fmt: skip
        return max(fits)
    if budget.min_speedup is not None:
        return _count_by_time(model, order, budget.min_speedup, inputs)
    return len(order)


def _count_by_time(model: nn.Module, order: Sequence[str], wanted: float, inputs: Any) -> int:
    """Return the smallest number of layers with the wanted speed-up."""
    before = _seconds(model, [], inputs)
    found = 1.0
    for count in range(1, len(order) + 1):
        found = before / _seconds(model, order[:count], inputs)
        if found >= wanted:
            return count
    raise InputError(
        f"min_speedup: expected at most {found:.2f}, the speed-up with all layers at this length, "
        f"got {wanted}; measure longer inputs"
    )


def _seconds(model: nn.Module, names: Sequence[str], inputs: Any) -> float:
    def call() -> None:
        with torch.no_grad():
            call_model(model, inputs)

    with replaced_only(model, names):
        return median(median_seconds({"forward": call}, device_of(model))["forward"])
