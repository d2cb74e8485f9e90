"""`rifflemix bench layers`: all mixers, lower bounds, and third-party layers and models."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
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
from rifflemix.lab.runs.measure import package_calls
from rifflemix.mixers import create_mixer, mixer_card, usable_mixers
from rifflemix.models import create_model
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
        Candidate(LAYER, PROJECTIONS, None, partial(_build, _two_linear_maps, settings)),
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
    gate: Callable[[Build, Settings, Shape], list[Check]],
) -> Candidate:
    return Candidate(
        kind,
        name,
        None,
        build=partial(_build, build, settings),
        gate=partial(gate, build, settings),
    )


def _build(build: Build, settings: Settings, shape: Shape) -> Built:
    module = build(shape).to(settings.torch_device, settings.torch_dtype)
    x = _input(shape, settings)
    leaves = (x, *module.parameters())
    return Built(forward_and_backward(lambda: module(x), leaves, module))


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


CLASSES = 10
_VOCABULARY = 256
_ENCODER_RATIO, _VIT_RATIO = 2, 4  # hidden channels of the feed-forward branch over C
_PATCH = 16

Inputs = Callable[[nn.Module, Shape], Tensor]
"""Makes random inputs of a model for the batch size of the shape."""


@dataclass(frozen=True)
class Backbone:
    """A model that supports any mixer.

    Attributes:
        shape: default shape.
        make: builds the rifflemix model from (mixer, layers, shape), on the CPU in float32, with
            `CLASSES` classes.
        inputs: makes random inputs of the model.
        gate_tokens: as in `rifflemix.lab.bench.models.Subject`.
        check: raises InputError if the model does not support the shape.
        peer: returns the third-party softmax model with the given number of layers and the same
            size.
    """

    shape: Shape
    make: Callable[[str, int, Shape], nn.Module]
    inputs: Inputs
    gate_tokens: int | None
    peer: Callable[[int], Peer]
    check: Callable[[Shape], object] = lambda shape: None


def byte_inputs(model: nn.Module, shape: Shape) -> Tensor:
    """Make (B, N) ids from 1 to 255."""
    return torch.randint(1, _VOCABULARY, (shape.batch, shape.tokens))


def _encoder(mixer: str, layers: int, shape: Shape) -> nn.Module:
    return create_model(
        "encoder",
        mixer=mixer,
        dim=shape.channels,
        num_layers=layers,
        num_heads=shape.heads,
        mlp_ratio=_ENCODER_RATIO,
        num_classes=CLASSES,
        vocab_size=_VOCABULARY,
        max_length=shape.tokens,
    )


def _bert(layers: int, package: Any, shape: Shape) -> nn.Module:
    """Build BERT's classifier with fused attention and one token type.

    BERT adds its own pooler.
    """
    config = package.BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=shape.channels,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        intermediate_size=_ENCODER_RATIO * shape.channels,
        max_position_embeddings=shape.tokens,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=CLASSES,
        attn_implementation="sdpa",
        return_dict=False,
    )
    return package.BertForSequenceClassification(config)


def _images(model: nn.Module, shape: Shape) -> Tensor:
    """Make images (B, 3, height, width) with `shape.tokens` patches."""
    size = _image_size(shape)
    return torch.randn(shape.batch, 3, size, size)


def _image_size(shape: Shape) -> int:
    """Return the height and width of a square image with `shape.tokens` patches."""
    side = math.isqrt(shape.tokens)
    if side**2 != shape.tokens:
        raise bad_argument("shape: tokens", "a square number, of patches of an image", shape.tokens)
    return _PATCH * side


def _vit(mixer: str, layers: int, shape: Shape) -> nn.Module:
    return create_model(
        "vit_imagenet",
        mixer=mixer,
        dim=shape.channels,
        num_layers=layers,
        num_heads=shape.heads,
        mlp_ratio=_VIT_RATIO,
        num_classes=CLASSES,
        image_size=_image_size(shape),
        patch_size=_PATCH,
        pool="mean",
        dropout=0.0,
        embedding_dropout=0.0,
    )


def _timm(layers: int, package: Any, shape: Shape) -> nn.Module:
    """Build timm's vision transformer without a class token.

    The head reads the norm of the mean of the tokens, as in `_vit`.
    """
    return package.VisionTransformer(
        img_size=_image_size(shape),
        patch_size=_PATCH,
        num_classes=CLASSES,
        embed_dim=shape.channels,
        depth=layers,
        num_heads=shape.heads,
        mlp_ratio=_VIT_RATIO,
        class_token=False,
        global_pool="avg",
    )


BACKBONES = {
    "encoder": Backbone(
        Shape(4, 1024, 256, 8),
        _encoder,
        byte_inputs,
        128,
        lambda layers: Peer("transformers", "transformers", partial(_bert, layers)),
    ),
    "vit": Backbone(
        Shape(8, 196, 192, 3),
        _vit,
        _images,
        None,
        lambda layers: Peer("timm", "timm.models.vision_transformer", partial(_timm, layers)),
        _image_size,
    ),
}
"""Backbones by their name on the command line."""
