"""`rifflemix bench models`: inference and training of whole models with each mixer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.bench.gate import (
    OPERATOR_TOLERANCE,
    Check,
    check,
    check_finite,
    output_and_gradients,
)
from rifflemix.lab.bench.layers import BACKBONES, CLASSES, Backbone, Inputs, byte_inputs
from rifflemix.lab.bench.peers import peer_status
from rifflemix.lab.bench.rows import FORWARD, MODEL, PEER, TRAINING_STEP, Row, Shape
from rifflemix.lab.bench.runner import (
    Built,
    Candidate,
    Group,
    Hooks,
    Settings,
    run_benchmark,
    switch,
)
from rifflemix.lab.runs.measure import kernel_share
from rifflemix.mixers import mixer_card, usable_mixers
from rifflemix.nn.block import Block
from rifflemix.ops.dispatch import prefer_backend

NO_MIXER, SOFTMAX = "no mixer", "softmax"
DEFAULT_LAYERS = 4
# To measure the share of kernels, a short call is repeated for about this many seconds, at most
# `repeats` times. The profiler needs seconds to process the events of many calls.
_SHARE_SECONDS = 0.05


class NoMixer(nn.Module):
    """Identity that replaces the mixer of a block."""

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return x (B, N, C) unchanged."""
        return x


def run(
    shapes: Sequence[Shape] = (),
    *,
    model: str = "encoder",
    layers: int = DEFAULT_LAYERS,
    mixers: Sequence[str] | None = None,
    peers: bool = False,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure inference and training steps of a model.

    A training step contains forward, loss, backward and an AdamW update.

    Args:
        shapes: batch, tokens, channels and heads to measure; if empty, the default shape of the
            model. Tokens of "vit" are patches of a square image.
        model: "encoder" for bytes, or "vit" for images.
        layers: number of blocks.
        mixers: registry names, all by default; softmax is always included.
        peers: include a third-party model of the same size if its package is installed. For the
            encoder this is BERT of transformers, for "vit" the vision transformer of timm.
        settings: data type, device, number of timings and limits.
        hooks: callbacks for progress, stopping and saving.

    Returns:
        Result in the format of benchmarks/README.md. Rows have the kind "model" or "peer" and the
        passes "forward" and "training_step". Ratios are to "no mixer" (only the backbone) and
        "softmax". "extra" contains the number of parameters, and the rates and the share of kernels
        of both passes. "peers" lists the third-party packages and their status.

    Raises:
        InputError: an unknown model or mixer, or a setting out of range.
    """
    settings = settings or Settings()
    check_choice("model", model, BACKBONES)
    if layers < 1:
        raise bad_argument("layers", "at least 1", layers)
    backbone = BACKBONES[model]
    shapes = shapes or (backbone.shape,)
    for shape in shapes:
        backbone.check(shape)
    names = usable_mixers() if mixers is None else [mixer_card(name).name for name in mixers]
    names = [NO_MIXER, SOFTMAX, *(name for name in names if name != SOFTMAX)]
    subject = partial(Subject, inputs=backbone.inputs, gate_tokens=backbone.gate_tokens)
    subjects = [subject(name, partial(_model, backbone, name, layers)) for name in names]
    peer = backbone.peer(layers)
    status = [peer_status(peer, settings.torch_device)] if peers else []
    if any(one["takes_part"] for one in status):
        subjects.append(subject(peer.name, peer.build, kind=PEER))
    candidates = [one.candidate(settings) for one in subjects]
    references = tuple((MODEL, name) for name in (NO_MIXER, SOFTMAX))
    groups = [Group(shape, candidates, references) for shape in shapes]
    details = {
        "model": model, "layers": layers, "mixers": names[1:], "peers": peers, "optimizer": "AdamW"
    }  # fmt: skip
    return run_benchmark(
        "models", groups, settings, details, hooks=hooks, summarise=lambda rows: {"peers": status}
    )


Make = Callable[[Shape], nn.Module]
"""Builds a model for a shape, on the CPU in float32, with at least `CLASSES` classes."""


@dataclass(frozen=True)
class Subject:
    """A model to measure. Its correctness check compares it with the eager operators.

    Attributes:
        name: name of the row.
        make: builds the model for a shape.
        inputs: makes random inputs of the model.
        gate_tokens: largest number of tokens in the correctness check; None if the model fixes it.
        extra: other numbers of the row, in addition to rates and parameters.
        kind: kind of the row. For a third-party model ("peer"), the check tests only the shape
            and that values are finite.
    """

    name: str
    make: Make
    inputs: Inputs = byte_inputs
    gate_tokens: int | None = 128
    extra: Mapping[str, float] = field(default_factory=dict)
    kind: str = MODEL

    def candidate(self, settings: Settings) -> Candidate:
        """Return the forward pass and the training step as a `Candidate`."""
        return Candidate(
            self.kind,
            self.name,
            None,
            build=partial(self._build, settings),
            gate=partial(self._gate, settings),
        )

    def _gate(self, settings: Settings, shape: Shape) -> list[Check]:
        """Compare logits and gradients of the fast operators with the eager operators."""
        tokens = min(shape.tokens, self.gate_tokens or shape.tokens)
        small = replace(shape, batch=2, tokens=tokens)
        model, inputs, _ = self._ready(settings, small)
        model.eval()
        leaves = tuple(model.parameters())
        actual = output_and_gradients(lambda: model(inputs), leaves)
        if self.kind == PEER:
            return [check_finite("logits, finite values", small, (2, CLASSES), actual)]
        with prefer_backend("eager"):
            expected = output_and_gradients(lambda: model(inputs), leaves)
        tolerance = OPERATOR_TOLERANCE[settings.torch_dtype]
        return [check("eager operators", small, actual, expected, tolerance)]

    def _build(self, settings: Settings, shape: Shape) -> Built:
        model, inputs, labels = self._ready(settings, shape)
        step = training_step(model, inputs, labels)

        def forward() -> Tensor:
            switch(model, training=False)
            with torch.inference_mode():
                return model(inputs)

        passes = {FORWARD: forward, TRAINING_STEP: step}
        parameters = sum(parameter.numel() for parameter in model.parameters())

        def describe(row: Row) -> dict[str, float]:
            shares = {name: _share(call, row, name, settings) for name, call in passes.items()}
            return {
                **_rates(row),
                "kernel_share": shares[TRAINING_STEP],
                "forward_kernel_share": shares[FORWARD],
                "parameters": parameters,
                **self.extra,
            }

        return Built(passes, describe)

    def _ready(self, settings: Settings, shape: Shape) -> tuple[nn.Module, Tensor, Tensor]:
        """Build the model, its inputs and one label per sample."""
        device, dtype = settings.torch_device, settings.torch_dtype
        model = self.make(shape).to(device, dtype)
        inputs = self.inputs(model, shape).to(device)
        labels = torch.randint(CLASSES, (shape.batch,), device=device)
        return model, inputs.to(dtype) if inputs.is_floating_point() else inputs, labels


def training_step(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], object]:
    """Return an AdamW training step: forward, loss, backward, update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # creates the optimizer state before any timed step
    optimizer.zero_grad(set_to_none=True)

    def step() -> None:
        switch(model, training=True)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs).float(), labels).backward()
        optimizer.step()

    return step


def _rates(row: Row) -> dict[str, float]:
    step, forward = (row.shape.batch / row.passes[name].p50 for name in (TRAINING_STEP, FORWARD))
    return {
        "steps_per_second": step / row.shape.batch,
        "tokens_per_second": step * row.shape.tokens,
        "samples_per_second": step,
        "forward_samples_per_second": forward,
    }


def _share(call: Callable[[], object], row: Row, name: str, settings: Settings) -> float:
    loops = max(1, round(_SHARE_SECONDS / row.passes[name].p50))
    return kernel_share(call, settings.torch_device, min(loops, settings.repeats))


def _model(backbone: Backbone, name: str, layers: int, shape: Shape) -> nn.Module:
    model = backbone.make(SOFTMAX if name == NO_MIXER else name, layers, shape)
    if name == NO_MIXER:
        for block in model.modules():
            if isinstance(block, Block):
                block.mixer = NoMixer()
    return model
