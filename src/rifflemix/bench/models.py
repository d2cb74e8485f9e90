"""`rifflemix bench models`: the encoder's training step with every mixer in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.bench.gate import OPERATOR_TOLERANCE, Check, check, output_and_gradients
from rifflemix.bench.rows import FORWARD, MODEL, TRAINING_STEP, Row, Shape
from rifflemix.bench.runner import Built, Candidate, Group, Hooks, Settings, run_benchmark
from rifflemix.errors import bad_argument
from rifflemix.mixers import mixer_card, usable_mixers
from rifflemix.models import create_model
from rifflemix.nn.block import Block
from rifflemix.ops.dispatch import prefer_backend
from rifflemix.runs.measure import kernel_share

NO_MIXER, SOFTMAX = "no mixer", "softmax"
DEFAULT_SHAPES = (Shape(4, 1024, 256, 8),)
DEFAULT_LAYERS = 4
_VOCABULARY, CLASSES = 256, 10


class NoMixer(nn.Module):
    """The stand-in for a block's mixer: the identity."""

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """(B, N, C) as it came."""
        return x


def run(
    shapes: Sequence[Shape] = DEFAULT_SHAPES,
    *,
    layers: int = DEFAULT_LAYERS,
    mixers: Sequence[str] | None = None,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure training steps of the encoder: forward, loss, backward, AdamW.

    Args:
        shapes: batch, tokens, channels and heads to measure at.
        layers: blocks of the encoder.
        mixers: registry names, all by default; softmax always takes part.
        settings: type, device, number of timings and limits.
        hooks: progress, stopping and saving.

    Returns:
        See benchmarks/README.md. Rows of kind "model", passes "forward" and "training_step",
        ratios to "no mixer" (the backbone alone) and "softmax"; "extra" has steps_per_second,
        tokens_per_second, parameters and kernel_share.

    Raises:
        InputError: an unknown mixer, or a setting out of range.
    """
    settings = settings or Settings()
    if layers < 1:
        raise bad_argument("layers", "at least 1", layers)
    names = usable_mixers() if mixers is None else [mixer_card(name).name for name in mixers]
    names = [NO_MIXER, SOFTMAX, *(name for name in names if name != SOFTMAX)]
    subjects = [Subject(name, partial(_model, name, layers)) for name in names]
    candidates = [subject.candidate(settings) for subject in subjects]
    references = tuple((MODEL, name) for name in (NO_MIXER, SOFTMAX))
    groups = [Group(shape, candidates, references) for shape in shapes]
    details = {"layers": layers, "mixers": names[1:], "optimizer": "AdamW"}
    return run_benchmark("models", groups, settings, details, hooks=hooks)


Make = Callable[[Shape], nn.Module]
"""A model for a shape, on the CPU in float32, of `CLASSES` classes or more."""
Inputs = Callable[[nn.Module, Shape], Tensor]
"""Random inputs of a model, as many as the shape's batch."""


def byte_inputs(model: nn.Module, shape: Shape) -> Tensor:
    """(B, N) ids from 1 to 255."""
    return torch.randint(1, _VOCABULARY, (shape.batch, shape.tokens))


@dataclass(frozen=True)
class Subject:
    """A model whose training step is measured, gated against the eager operators.

    Attributes:
        name: of the row.
        make: the model for a shape.
        inputs: what it reads.
        gate_tokens: most tokens that the gate compares; None where the model has its own number.
        extra: what the row says beside rates and parameters.
    """

    name: str
    make: Make
    inputs: Inputs = byte_inputs
    gate_tokens: int | None = 128
    extra: Mapping[str, float] = field(default_factory=dict)

    def candidate(self, settings: Settings) -> Candidate:
        """The forward pass and the training step, for the runner."""
        return Candidate(
            MODEL,
            self.name,
            None,
            build=partial(self._build, settings),
            gate=partial(self._gate, settings),
        )

    def _gate(self, settings: Settings, shape: Shape) -> list[Check]:
        """Logits and gradients with the fast operators against the eager ones."""
        tokens = min(shape.tokens, self.gate_tokens or shape.tokens)
        small = replace(shape, batch=2, tokens=tokens)
        model, inputs, _ = self._ready(settings, small)
        model.eval()
        leaves = tuple(model.parameters())
        actual = output_and_gradients(lambda: model(inputs), leaves)
        with prefer_backend("eager"):
            expected = output_and_gradients(lambda: model(inputs), leaves)
        tolerance = OPERATOR_TOLERANCE[settings.torch_dtype]
        return [check("eager operators", small, actual, expected, tolerance)]

    def _build(self, settings: Settings, shape: Shape) -> Built:
        model, inputs, labels = self._ready(settings, shape)
        step = training_step(model, inputs, labels)

        def forward() -> Tensor:
            model.eval()
            with torch.no_grad():
                out: Tensor = model(inputs)
            return out

        parameters = sum(parameter.numel() for parameter in model.parameters())
        known = {"parameters": parameters, **self.extra}
        device = settings.torch_device
        return Built(
            {FORWARD: forward, TRAINING_STEP: step},
            describe=lambda row: (
                _rates(row) | {"kernel_share": kernel_share(step, device), **known}
            ),
        )

    def _ready(self, settings: Settings, shape: Shape) -> tuple[nn.Module, Tensor, Tensor]:
        """The model, its inputs and a label for each."""
        device, dtype = settings.torch_device, settings.torch_dtype
        model = self.make(shape).to(device, dtype)
        inputs = self.inputs(model, shape).to(device)
        labels = torch.randint(CLASSES, (shape.batch,), device=device)
        return model, inputs.to(dtype) if inputs.is_floating_point() else inputs, labels


def training_step(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], object]:
    """A step of AdamW on one batch: forward, loss, backward, update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes the optimiser's state, which no step should be charged with
    optimizer.zero_grad(set_to_none=True)

    def step() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs).float(), labels).backward()
        optimizer.step()

    return step


def _rates(row: Row) -> dict[str, float]:
    seconds = row.passes[TRAINING_STEP].p50
    return {
        "steps_per_second": 1 / seconds,
        "tokens_per_second": row.shape.batch * row.shape.tokens / seconds,
    }


def _model(name: str, layers: int, shape: Shape) -> nn.Module:
    model = create_model(
        "encoder",
        mixer=SOFTMAX if name == NO_MIXER else name,
        dim=shape.channels,
        num_layers=layers,
        num_heads=shape.heads,
        num_classes=CLASSES,
        vocab_size=_VOCABULARY,
        max_length=shape.tokens,
    )
    if name == NO_MIXER:
        for block in model.modules():
            if isinstance(block, Block):
                block.mixer = NoMixer()
    return model
