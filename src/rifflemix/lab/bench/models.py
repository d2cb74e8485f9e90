"""`rifflemix bench models`: whole models with every mixer in them, inference and training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.bench.backbones import BACKBONES, CLASSES, Backbone, Inputs, byte_inputs
from rifflemix.lab.bench.gate import (
    OPERATOR_TOLERANCE,
    Check,
    check,
    check_finite,
    output_and_gradients,
)
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
# A short call is made so long, but no more often than it is timed, to see what share kernels take:
# the profiler needs seconds for the events of many calls.
_SHARE_SECONDS = 0.05


class NoMixer(nn.Module):
    """The stand-in for a block's mixer: the identity."""

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """(B, N, C) as it came."""
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
    """Measure inference and training steps (forward, loss, backward, AdamW) of a model.

    Args:
        shapes: batch, tokens, channels and heads to measure at; the model's own where empty. Tokens
            of "vit" are patches of a square image.
        model: "encoder" of bytes, or "vit" of images.
        layers: blocks of the model.
        mixers: registry names, all by default; softmax always takes part.
        peers: let another package's model of the same size take part if it is installed: BERT of
            transformers beside the encoder, timm's vision transformer beside "vit".
        settings: type, device, number of timings and limits.
        hooks: progress, stopping and saving.

    Returns:
        See benchmarks/README.md. Rows of kind "model" and "peer", passes "forward" and
        "training_step", ratios to "no mixer" (the backbone alone) and "softmax"; "extra" has
        parameters, and of both passes rates and the share of kernels; "peers" says which package
        took part.

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
"""A model for a shape, on the CPU in float32, of `CLASSES` classes or more."""


@dataclass(frozen=True)
class Subject:
    """A model whose inference and training step are measured, gated against the eager operators.

    Attributes:
        name: of the row.
        make: the model for a shape.
        inputs: what it reads.
        gate_tokens: most tokens that the gate compares; None where the model has its own number.
        extra: what the row says beside rates and parameters.
        kind: of the row. A peer, another package's model, is gated for shape and finite values.
    """

    name: str
    make: Make
    inputs: Inputs = byte_inputs
    gate_tokens: int | None = 128
    extra: Mapping[str, float] = field(default_factory=dict)
    kind: str = MODEL

    def candidate(self, settings: Settings) -> Candidate:
        """The forward pass and the training step, for the runner."""
        return Candidate(
            self.kind,
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
                out: Tensor = model(inputs)
            return out

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
