"""Layers to measure: all registered mixers, two linear layers as a lower bound, and peers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.lab.bench.calls import package_calls
from rifflemix.lab.bench.gate import (
    LAYER_TOLERANCE,
    OPERATOR_TOLERANCE,
    Check,
    check,
    check_finite,
    output_and_gradients,
)
from rifflemix.lab.bench.peers import Peer
from rifflemix.lab.bench.rows import FORWARD, LAYER, PEER, Row, Shape
from rifflemix.lab.bench.runner import (
    Built,
    Candidate,
    Group,
    Hooks,
    Settings,
    forward_and_backward,
    run_benchmark,
)
from rifflemix.mixers import create_mixer, mixer_card, usable_mixers
from rifflemix.ops.dispatch import prefer_backend

PROJECTIONS, SOFTMAX = "two linear maps", "softmax"
FLOOR, BASELINE = (LAYER, PROJECTIONS), (LAYER, SOFTMAX)
DEFAULT_SHAPES = (Shape(1, 64, 64, 4),)
_GATE_TOKENS = 256

Build = Callable[[Shape], nn.Module]


def run(
    shapes: Sequence[Shape] = DEFAULT_SHAPES,
    *,
    mixers: Sequence[str] | None = None,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure layers at shapes.

    The default shape is so small that Python dominates the time.

    Args:
        shapes: shapes to measure.
        mixers: registry names, all by default; softmax is always included.
        settings: data type, device, number of timings and limits.
        hooks: callbacks for progress, stopping and saving.

    Returns:
        Result in the format of benchmarks/README.md. Rows have the kind "layer" and the passes
        "forward" and "forward_backward". Ratios are to "two linear maps" and "softmax".
        "package_calls" counts the calls of rifflemix functions in a forward pass.

    Raises:
        InputError: an unknown mixer, or a setting out of range.
    """
    settings = settings or Settings()
    names = usable_mixers() if mixers is None else [mixer_card(name).name for name in mixers]
    candidates = [
        replace(candidate, build=partial(_counted, candidate.build))
        for candidate in layer_candidates(names, (), settings)
    ]
    groups = [Group(shape, candidates, (FLOOR, BASELINE)) for shape in shapes]
    return run_benchmark("layers", groups, settings, {"mixers": names}, hooks=hooks)


def _counted(build: Callable[[Shape], Built], shape: Shape) -> Built:
    """Add the package calls of a forward pass to the row."""
    built = build(shape)

    def describe(row: Row) -> dict[str, float]:
        return {"package_calls": package_calls(built.passes[FORWARD]).total()}

    return replace(built, describe=describe)


def layer_candidates(
    mixers: Sequence[str], peers: Sequence[Peer], settings: Settings, *, causal: bool = False
) -> list[Candidate]:
    """List candidates: two linear layers, softmax, the other mixers, then the peers.

    `causal` applies to all mixers.
    """
    names = [SOFTMAX, *(name for name in mixers if name != SOFTMAX)]
    return [
        _candidate(LAYER, PROJECTIONS, _two_linear_maps, settings, None),
        *(_candidate(LAYER, n, partial(_mixer, n, causal), settings, gate_mixer) for n in names),
        *(_candidate(PEER, p.name, p.build, settings, _gate_peer) for p in peers),
    ]


def gate_mixer(build: Build, settings: Settings, shape: Shape) -> list[Check]:
    """Compare fast operators with eager operators, and the forward pass with float64.

    The first comparison is strict, because both sides compute the same projections before a sort.
    In the second comparison, rounding before a sort may swap neighbors.
    """
    at, module, x = _gate_layer(build, settings, shape)
    leaves = (x, *module.parameters())
    actual = output_and_gradients(lambda: module(x), leaves)
    with prefer_backend("eager"), torch.no_grad():
        exact = copy.deepcopy(module).double()(x.double())
    with prefer_backend("eager"):
        eager = output_and_gradients(lambda: module(x), leaves)
    dtype = settings.torch_dtype
    return [
        check("eager operators", at, actual, eager, OPERATOR_TOLERANCE[dtype]),
        check("eager operators, float64", at, actual[:1], [exact], LAYER_TOLERANCE[dtype]),
    ]


def _gate_peer(build: Build, settings: Settings, shape: Shape) -> list[Check]:
    at, module, x = _gate_layer(build, settings, shape)
    actual = output_and_gradients(lambda: module(x), (x, *module.parameters()))
    return [check_finite("the input's shape, finite values", at, x.shape, actual)]


def _gate_layer(build: Build, settings: Settings, shape: Shape) -> tuple[Shape, nn.Module, Tensor]:
    """Build a layer in evaluation mode and a short input.

    The input is short enough for float64 attention.
    """
    small = replace(shape, batch=1, tokens=min(shape.tokens, _GATE_TOKENS))
    module = build(small).to(settings.torch_device, settings.torch_dtype).eval()
    return small, module, _input(small, settings)


def _candidate(
    kind: str,
    name: str,
    build: Build,
    settings: Settings,
    gate: Callable[[Build, Settings, Shape], list[Check]] | None,
) -> Candidate:
    return Candidate(
        kind,
        name,
        None,
        build=partial(_build, build, settings),
        gate=_no_checks if gate is None else partial(gate, build, settings),
    )


def _build(build: Build, settings: Settings, shape: Shape) -> Built:
    module = build(shape).to(settings.torch_device, settings.torch_dtype)
    x = _input(shape, settings)
    leaves = (x, *module.parameters())
    return Built(forward_and_backward(lambda: module(x), leaves, module))


def _no_checks(shape: Shape) -> list[Check]:
    return []


def _input(shape: Shape, settings: Settings) -> Tensor:
    size = (shape.batch, shape.tokens, shape.channels)
    x = torch.randn(size, device=settings.torch_device).to(settings.torch_dtype)
    return x.requires_grad_()


def _two_linear_maps(shape: Shape) -> nn.Module:
    return nn.Sequential(*(nn.Linear(shape.channels, shape.channels) for _ in range(2)))


def _mixer(name: str, causal: bool, shape: Shape) -> nn.Module:
    return create_mixer(
        name, shape.channels, num_heads=shape.heads, max_length=shape.tokens, causal=causal
    )
