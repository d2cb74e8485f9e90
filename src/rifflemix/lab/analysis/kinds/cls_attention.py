"""Attention of the class token over an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.lab.analysis.drawing import (
    as_grid,
    check_images,
    chosen_layers,
    image_of,
    new_figure,
    picture,
)
from rifflemix.lab.analysis.finding import (
    Column,
    Finding,
    Subject,
    Tick,
    layer_finding,
    of_those_that_have,
    progress,
    silent,
)
from rifflemix.lab.analysis.kinds.measures import entropy
from rifflemix.lab.analysis.maps import matrix_of
from rifflemix.lab.analysis.trace import MIXERS, Call, trace, undisturbed
from rifflemix.models.vision.tost_layers import ClassAttention
from rifflemix.nn.layers import ClassToken

_SAMPLES, _LAYERS = 2, 2


@dataclass
class LayerAttention:
    """Attention of the class token to the patches in one layer.

    Attributes:
        name: name of the layer.
        first: (B, H, N) weights of the patches in the first batch, normalized to sum 1 over them.
        entropies: entropy over the patches divided by its maximum, the mean over heads per sample.
        itself: weight of the class token on itself, the mean over heads per sample.
    """

    name: str
    first: Tensor
    entropies: list[float] = field(default_factory=list)
    itself: list[float] = field(default_factory=list)


def class_attention(subject: Subject, tick: Tick = silent) -> list[LayerAttention]:
    """Return the attention of the class token in every layer.

    Layers without attention weights are left out.

    Raises:
        InputError: no layer attends with a class token, or the samples are not images.
    """
    check_images(subject, "attention of the class token")
    modules = list(subject.model.modules())
    gathers = any(isinstance(module, ClassAttention) for module in modules)
    if not gathers and not any(map(_has_class_token, modules)):
        raise InputError(f"{subject.label}: expected a model with a class token, got none")
    kind = ClassAttention if gathers else MIXERS
    found: dict[str, LayerAttention] = {}
    for calls in progress(subject, trace(subject.model, subject.batches, of=kind), tick):
        for call in calls:
            weights = _weights(call)
            if weights is not None:
                _add(found, call.name, weights.double().cpu())
        if not found:
            break
    if not found:
        raise InputError(
            f"{subject.label}: expected mixers with attention weights for the class token, got none"
        )
    return list(found.values())


def _has_class_token(module: nn.Module) -> bool:
    """Check for a class token.

    This is a `ClassToken`, or a parameter `cls_token` as in other libraries.
    """
    return isinstance(module, ClassToken) or isinstance(
        getattr(module, "cls_token", None), nn.Parameter
    )


def _weights(call: Call) -> Tensor | None:
    """Return the weights (B, H, N) of the first token, or None."""
    if isinstance(call.module, ClassAttention):
        with undisturbed(call.module):
            return call.module.weights(call.x)
    matrix = matrix_of(call, first=1)
    return None if matrix is None else matrix[:, :, 0]


def _add(found: dict[str, LayerAttention], name: str, weights: Tensor) -> None:
    patches = weights[..., 1:]
    shares = patches / patches.sum(-1, keepdim=True).clamp_min(1e-300)
    layer = found.setdefault(name, LayerAttention(name, shares))
    most = math.log(max(shares.shape[-1], 2))
    layer.entropies += (entropy(shares) / most).mean(1).tolist()
    layer.itself += weights[..., 0].mean(1).tolist()


def cls_attention(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Show the class token's attention over the image for each head.

    Source: Wu et al. 2024 (ToST), Figures 5 and 10.
    """
    found = of_those_that_have(subjects, lambda subject: class_attention(subject, tick))
    drawn = {subject.label: subject for subject in subjects if subject.label in found}
    return layer_finding(
        found,
        _COLUMNS,
        sentence=_sentence,
        caption=_CAPTION,
        figure=_figure(drawn, found),
        arrays=lambda layer: {"": layer.first[:8].numpy()},
    )


_COLUMNS = (
    Column("Entropy over patches, share of the most", "entropy", value="entropies"),
    Column("Weight on itself", "itself"),
)
_CAPTION = (
    "How much of each patch the class token gathers, head by head, each map over its largest "
    "weight: dark is little, bright is much. The entropy is 1 where all patches get the same."
)


def _sentence(label: str, layers: Sequence[LayerAttention]) -> str:
    values = [float(np.mean(layer.entropies)) for layer in layers]
    return (
        f"{label}: the class token's weights have {min(values):.2f} to {max(values):.2f} of the "
        f"entropy of equal weights, layers {layers[0].name} to {layers[-1].name}."
    )


def _figure(subjects: dict[str, Subject], found: dict[str, list[LayerAttention]]) -> Figure:
    """Draw one row per model, layer and sample.

    The columns are the image and each head.
    """
    rows = [
        (label, layer, sample)
        for label, layers in found.items()
        for layer in chosen_layers(layers, _LAYERS if len(found) == 1 else 1)
        for sample in range(min(_SAMPLES, len(layers[0].first)))
    ]
    heads = min(8, max(layers[0].first.shape[1] for layers in found.values()))
    size = 9.6 / (heads + 1)
    figure = new_figure(len(rows) * (size + 0.25) + 0.3)
    grid = figure.subplots(len(rows), heads + 1, squeeze=False)
    for place in grid.flat:
        place.set_visible(False)
    for row, (label, layer, sample) in zip(grid, rows, strict=True):
        row[0].set_visible(True)
        picture(row[0], image_of(subjects[label], sample), title=label, cmap="gray")
        row[0].set_ylabel(f"image {sample + 1}\n{layer.name}", fontsize=7)
        maps = as_grid(layer.first[sample])
        for head, place in enumerate(row[1 : 1 + min(heads, len(maps))]):
            place.set_visible(True)
            picture(place, maps[head] / maps[head].max(), title=f"head {head + 1}", vmin=0, vmax=1)
    return figure
