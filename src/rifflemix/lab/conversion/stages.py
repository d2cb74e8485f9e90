"""Training stages of a conversion as models and tasks of the training loop."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.lab.conversion.outputs import Objective, Samples, end_to_end
from rifflemix.lab.train.protocols import Batch
from rifflemix.models.base import call_model
from rifflemix.surgery.distillation import LayerMatcher, swapped_modules

STAGES = ("layers", "own_inputs", "outputs", "fine_tune")
"""Stages of a conversion, in their order."""

HOST_RATE, LAYER_DECAY = 0.1, 0.9
"""Share of the learning rate for weights of the original model, and its decay per layer."""


class StageModel(nn.Module):
    """Loss of a stage as a module, for the training loop.

    The inputs are indices of batches. In the stages before "fine_tune", dropout is off.

    Args:
        model: model to train.
        stage: name in `STAGES`.
        loss: loss of the batch with an index.
    """

    def __init__(self, model: nn.Module, stage: str, loss: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._stage, self._loss = stage, loss

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the model; only "fine_tune" trains with dropout."""
        super().train(mode)
        self.model.train(mode and self._stage == "fine_tune")
        return self

    def forward(self, inputs: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return the mean loss of the batches with these indices."""
        return torch.stack([self._loss(int(index)) for index in inputs]).mean()

    def rate_factors(self) -> Mapping[str, float]:
        """Return the factors of the learning rate of the original model's weights."""
        if self._stage in ("layers", "own_inputs"):
            return {}
        return {f"model.{name}": factor for name, factor in layer_rates(self.model).items()}


class StageTask:
    """Batches of a stage as a task of the training loop.

    Args:
        stage: name in `STAGES`.
        count: number of batches.
        identity: hash of the batches and of the original model.
    """

    metric, higher_is_better = "loss", False
    split_note = "a conversion has no validation split"

    def __init__(self, stage: str, count: int, identity: str) -> None:
        self.name, self._count, self._identity = "conversion", count, identity
        self.options: Mapping[str, Any] = {"stage": stage}

    def split(self, name: str, /) -> Sequence[int]:
        """Return the indices of the batches; the validation split is empty."""
        return range(0 if name == "validation" else self._count)

    def collate(self, samples: Sequence[int], /) -> Batch:
        """Collate indices to (B, 1)."""
        return {"inputs": torch.tensor(samples).unsqueeze(1)}

    def loss(self, outputs: Tensor, batch: Batch, /) -> Tensor:
        """Return the outputs: `StageModel` computes the loss."""
        return outputs

    def metrics(self, outputs: Tensor, batch: Batch, /) -> Mapping[str, tuple[float, int]]:
        """Return the loss as the only metric."""
        return {"loss": (float(outputs), 1)}

    def fingerprint(self) -> str:
        """Return the hash of the batches and of the original model."""
        return self._identity


def stage_model(
    stage: str, model: nn.Module, original: nn.Module, samples: Samples, objective: Objective
) -> StageModel:
    """Build the trainable module of a stage."""
    if stage in ("layers", "own_inputs"):
        matcher = LayerMatcher(model, original, own_inputs=stage == "own_inputs")
        return StageModel(model, stage, lambda index: layer_loss(matcher, samples.inputs(index)))

    def match(index: int) -> Tensor:
        loss, outputs = end_to_end(model, original, samples, index, objective)
        if objective.loss is not None:
            loss = loss + objective.task_loss(model, outputs, samples.labels(index))
        return loss

    def tune(index: int) -> Tensor:
        outputs = call_model(model, samples.inputs(index), name="batches")
        return objective.task_loss(model, outputs, samples.labels(index))

    return StageModel(model, stage, match if stage == "outputs" else tune)


def layer_loss(matcher: LayerMatcher, inputs: Any) -> Tensor:
    """Return the sum of the errors of all layers."""
    errors = matcher.errors(inputs)
    for name in matcher.names:
        if name not in errors:
            raise bad_argument(
                "batches", "inputs that reach every replaced layer", f"none at {name}"
            )
    return torch.stack(list(errors.values())).sum()


def layer_rates(model: nn.Module) -> dict[str, float]:
    """Return parameter name -> factor of the learning rate for weights of the original model.

    New mixers train at the full rate. Other weights train at 0.1 of it, times 0.9 for each
    replaced layer above them, so that the first layers change least. Source of the decay over
    layers: Clark et al. 2020 (ELECTRA), appendix A.
    """
    blocks = [_block(name) for name in swapped_modules(model)]
    mixers = tuple(f"{name}.mixer." for name in swapped_modules(model))
    factors, last = {}, -1
    for name, _ in model.named_parameters():
        inside = next((i for i, block in enumerate(blocks) if name.startswith(block)), None)
        last = last if inside is None else max(last, inside)
        above = len(blocks) - 1 - (last if inside is None else inside)
        if not name.startswith(mixers):
            factors[name] = HOST_RATE * LAYER_DECAY**above
    return factors


def fingerprint(samples: Samples, original: nn.Module) -> str:
    """Return a hash of the batches and of the weights of the original model."""
    digest = hashlib.sha256()
    for name, tensor in original.state_dict().items():
        digest.update(name.encode())
        _add(digest, tensor)
    for index in range(len(samples)):
        for part in (samples.inputs(index), samples.labels(index)):
            _add(digest, part)
    return digest.hexdigest()[:16]


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().tobytes())
    elif isinstance(value, Mapping):
        for name, part in value.items():
            digest.update(str(name).encode())
            _add(digest, part)
    elif isinstance(value, tuple | list):
        for part in value:
            _add(digest, part)
    else:
        digest.update(repr(value).encode())


def _block(name: str) -> str:
    """Return the prefix of the layer that contains a module: up to its last number."""
    found = re.match(r"(.*\.)?\d+\.", name)
    return found.group() if found else f"{name}."
