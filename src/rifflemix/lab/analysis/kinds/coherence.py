"""Angles between the subspaces of the heads of token statistics (TSSA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.analysis.drawing import chosen_layers, panels, picture
from rifflemix.lab.analysis.finding import (
    Column,
    Finding,
    Subject,
    Tick,
    layer_finding,
    of_those_that_have,
    silent,
)
from rifflemix.lab.analysis.trace import find_layers
from rifflemix.mixers.tssa import TSSA

_LAYERS = 4


@dataclass(frozen=True)
class LayerCoherence:
    """Coherence of the bases of one layer.

    Attributes:
        name: name of the layer.
        cosines: (C, C) cosines between all directions of all heads, in the order of the heads.
        within: mean |cosine| of two directions of one head.
        between: mean |cosine| of two directions of different heads.
        largest: largest cosine of a principal angle between the spans of two heads, the mean over
            pairs of heads; 1 if the spans intersect.
        expected: mean |cosine| of random directions in the same number of dimensions.
        heads: number of heads.
    """

    name: str
    cosines: NDArray[np.float64]
    within: float
    between: float
    largest: float
    expected: float
    heads: int


def coherence_of(name: str, weight: Tensor, heads: int) -> LayerCoherence:
    """Compute the cosines between the directions of all heads.

    Args:
        name: name of the layer.
        weight: rows are the directions of the heads, as in `in_proj.weight`.
        heads: number of heads that share the rows.
    """
    rows = weight.detach().double().cpu()
    unit = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    cosines = unit @ unit.T
    count, dim = rows.shape
    head = torch.arange(count) // (count // heads)
    same = head[:, None] == head[None, :]
    others = ~torch.eye(count, dtype=torch.bool)
    spans = torch.linalg.qr(rows.unflatten(0, (heads, -1)).mT)[0]  # (H, C, D)
    meets = [
        float(torch.linalg.matrix_norm(spans[a].T @ spans[b], 2))
        for a in range(heads)
        for b in range(a)
    ]
    return LayerCoherence(
        name,
        cosines.numpy(),
        _mean(cosines.abs()[same & others]),
        _mean(cosines.abs()[~same]),
        float(np.mean(meets)) if meets else 0.0,
        # E |u . v| of independent unit vectors: Gamma(d / 2) / (sqrt(pi) Gamma((d + 1) / 2)).
        float(
            torch.exp(
                torch.lgamma(torch.tensor(dim / 2)) - torch.lgamma(torch.tensor((dim + 1) / 2))
            )
            / np.sqrt(np.pi)
        ),
        heads,
    )


def layer_coherences(subject: Subject, tick: Tick = silent) -> list[LayerCoherence]:
    """Compute the coherence of every TSSA layer.

    Raises:
        InputError: the model has no TSSA layer.
    """
    tick(subject.label, 0, 1)
    layers = [
        coherence_of(name, layer.in_proj.weight, layer.num_heads)
        for name, layer in find_layers(subject.model).items()
        if isinstance(layer, TSSA)
    ]
    if not layers:
        raise InputError(f"{subject.label}: expected a model with mixer tssa, got none")
    tick(subject.label, 1, 1)
    return layers


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0


def coherence(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Compare the bases of the heads; this needs only weights, no data.

    Source: Wu et al. 2024 (ToST), Figure 11.
    """
    found = of_those_that_have(subjects, lambda subject: layer_coherences(subject, tick))
    return layer_finding(
        found,
        _COLUMNS,
        sentence=_sentence,
        caption=_CAPTION,
        figure=_figure(found),
        arrays=lambda layer: {"": layer.cosines},
    )


_COLUMNS = (
    Column("Mean |cosine| between heads", "between"),
    Column("Within heads", "within"),
    Column("Of random directions", "expected"),
    Column("Largest cosine between spans", "largest"),
)
_CAPTION = (
    "|cosine| between all directions of a layer, head after head; white lines part the heads. "
    "Incoherent heads are dark outside the diagonal blocks. Random directions have the mean "
    "|cosine| in the table; the largest cosine of a principal angle between two heads' spans is 1 "
    "if they intersect."
)


def _sentence(label: str, layers: Sequence[LayerCoherence]) -> str:
    between = float(np.mean([layer.between for layer in layers]))
    expected = layers[0].expected
    return (
        f"{label}: directions of different heads have a mean |cosine| of {between:.3f}, random "
        f"directions of the same dimension {expected:.3f}."
    )


def _figure(found: dict[str, list[LayerCoherence]]) -> Figure:
    drawn = [
        (label, layer)
        for label, layers in found.items()
        for layer in chosen_layers(layers, _LAYERS)
    ]
    figure, axes = panels(len(drawn), height=3.3 if len(drawn) > 1 else 6.0)
    shown = None
    for place, (label, layer) in zip(axes, drawn, strict=True):
        shown = picture(
            place, np.abs(layer.cosines), title=f"{label}, {layer.name}", vmin=0, vmax=1
        )
        size = len(layer.cosines) // layer.heads
        for head in range(1, layer.heads):
            for line in (place.axhline, place.axvline):
                line(head * size - 0.5, color="white", linewidth=0.7)
        place.set_xlabel("direction", fontsize=9)
        place.set_ylabel("direction", fontsize=9)
    if shown is not None:
        bar = figure.colorbar(shown, ax=axes, location="bottom", shrink=0.4, aspect=40)
        bar.set_label("|cosine|", fontsize=9)
    return figure
