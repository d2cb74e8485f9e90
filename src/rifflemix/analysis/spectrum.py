"""Singular values of what layers put out and of the maps they apply, and the ranks they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.analysis.drawing import COLOURS, GREY, legend, panels, tidy
from rifflemix.analysis.finding import Finding, Subject, Tick, as_array, progress, silent
from rifflemix.analysis.maps import matrix_of, permutation_of
from rifflemix.analysis.measures import effective_rank, singular_values, stable_rank
from rifflemix.analysis.trace import Call, trace

# A map is measured by N / D passes and takes H N^2 numbers a sample.
MOST_MAP_TOKENS = 512


@dataclass(frozen=True)
class LayerSpectrum:
    """One layer's spectra, means over samples.

    Attributes:
        name: of the layer.
        outputs: singular values of its outputs over the largest, falling.
        effective, stable: ranks of its outputs.
        map_effective, map_stable: of its map, mean over heads; None where it has no such map.
        map_values: singular values of its map over the largest; empty where it has none.
        tokens: most tokens of a sample.
    """

    name: str
    outputs: NDArray[np.float64]
    effective: float
    stable: float
    map_effective: float | None
    map_stable: float | None
    map_values: NDArray[np.float64]
    tokens: int


def layer_spectra(subject: Subject, tick: Tick = silent) -> list[LayerSpectrum]:
    """The spectra of every mixer of a subject, over all of its batches."""
    found: dict[str, list[tuple[Tensor, Tensor | None, int]]] = {}
    for calls in progress(subject, trace(subject.model, subject.batches), tick):
        for call in calls:
            values = singular_values(call.y, call.key_padding_mask).cpu()
            found.setdefault(call.name, []).append((values, _map_values(call), call.x.shape[1]))
    return [_layer(name, parts) for name, parts in found.items()]


def _map_values(call: Call) -> Tensor | None:
    """(maps, N) singular values of every head's map in every sample, falling.

    Those of a permutation of the valid tokens are 1, and 0 for each padded one, as in other maps.
    """
    length = call.x.shape[1]
    if permutation_of(call) is not None:
        ones = torch.ones(len(call.x), length, dtype=torch.float64)
        mask = call.key_padding_mask
        return ones if mask is None else (~mask).cpu().double().sort(descending=True).values
    if length > MOST_MAP_TOKENS:
        return None
    matrix = matrix_of(call)
    return None if matrix is None else torch.linalg.svdvals(matrix.double()).flatten(0, 1).cpu()


def _layer(name: str, parts: list[tuple[Tensor, Tensor | None, int]]) -> LayerSpectrum:
    outputs = [values for values, _, _ in parts]
    maps = [values for _, values, _ in parts if values is not None]
    return LayerSpectrum(
        name=name,
        outputs=_mean_shape(outputs),
        effective=_mean(effective_rank, outputs),
        stable=_mean(stable_rank, outputs),
        map_effective=_mean(effective_rank, maps) if maps else None,
        map_stable=_mean(stable_rank, maps) if maps else None,
        map_values=_mean_shape(maps) if maps else np.zeros(0),
        tokens=max(length for _, _, length in parts),
    )


def _mean(rank: object, values: list[Tensor]) -> float:
    return float(torch.cat([rank(part) for part in values]).mean())  # type: ignore[operator]


def _mean_shape(values: list[Tensor]) -> NDArray[np.float64]:
    """Mean of spectra over their largest value; shorter ones end in zeros."""
    width = max(part.shape[1] for part in values)
    scaled = [part / part[:, :1].clamp_min(1e-300) for part in values]
    whole = torch.cat([torch.nn.functional.pad(p, (0, width - p.shape[1])) for p in scaled])
    return as_array(whole.mean(0))


def spectrum(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Spectra and ranks of every layer's outputs and map.

    Source: CSP, Figure 3; Sliceformer, Figure 4.
    """
    found = {subject.label: layer_spectra(subject, tick) for subject in subjects}
    return Finding(
        kind="spectrum",
        title="Spectrum of outputs and maps",
        source="CSP (Yuan and Xu), Figure 3; Sliceformer (Yuan and Xu), Figure 4",
        seen=tuple(_sentence(label, layers) for label, layers in found.items()),
        headers=(
            "Model",
            "Layer",
            "Effective rank of outputs",
            "Stable rank of outputs",
            "Effective rank of the map",
            "Stable rank of the map",
        ),
        rows=tuple(_row(label, layer) for label, layers in found.items() for layer in layers),
        caption=_CAPTION,
        data={"models": {label: [_numbers(layer) for layer in of] for label, of in found.items()}},
        arrays={
            f"{label}/{layer.name}/{what}": values
            for label, layers in found.items()
            for layer in layers
            for what, values in (("outputs", layer.outputs), ("map", layer.map_values))
        },
        figure=_figure(found),
    )


_CAPTION = (
    "Singular values of each layer's outputs over the largest one, means over samples: the first "
    "layer in blue, the last in orange, those between in grey. A line that stays high fills more "
    "dimensions. Effective rank is exp of the entropy of the singular values, stable rank the sum "
    "of their squares over the largest square. A permutation has singular values 1 only, so its "
    "map has full rank; a layer without a map over tokens, or with more than "
    f"{MOST_MAP_TOKENS} tokens, shows none."
)


def _row(label: str, layer: LayerSpectrum) -> tuple[str, ...]:
    return (
        label,
        layer.name,
        f"{layer.effective:.1f}",
        f"{layer.stable:.2f}",
        "-" if layer.map_effective is None else f"{layer.map_effective:.1f}",
        "-" if layer.map_stable is None else f"{layer.map_stable:.2f}",
    )


def _numbers(layer: LayerSpectrum) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "effective_rank": layer.effective,
        "stable_rank": layer.stable,
        "map_effective_rank": layer.map_effective,
        "map_stable_rank": layer.map_stable,
        "tokens": layer.tokens,
    }


def _sentence(label: str, layers: Sequence[LayerSpectrum]) -> str:
    first, last = layers[0], layers[-1]
    full = len(last.outputs)
    sentence = (
        f"{label}: outputs of effective rank {first.effective:.1f} in the first layer and "
        f"{last.effective:.1f} in the last, of {full} possible"
    )
    if last.map_effective is not None:
        sentence += f"; the last map has effective rank {last.map_effective:.1f} of {last.tokens}"
    return f"{sentence}."


def _figure(found: dict[str, list[LayerSpectrum]]) -> Figure:
    figure, axes = panels(len(found), sharey=True, height=2.8)
    for place, (label, layers) in zip(axes, found.items(), strict=True):
        for number, layer in enumerate(layers):
            ends = number in (0, len(layers) - 1)
            colour = (COLOURS[0] if number == 0 else COLOURS[1]) if ends else GREY
            name = {len(layers) - 1: "last layer", 0: "first layer"}.get(number)
            index = np.arange(1, len(layer.outputs) + 1)
            place.semilogy(
                index,
                np.maximum(layer.outputs, 1e-8),
                color=colour,
                linestyle="-" if number == 0 or not ends else "--",
                linewidth=1.8 if ends else 0.9,
                zorder=3 if ends else 2,
                label=name,
            )
        tidy(place, title=label, x="number of the singular value", y="")
        place.set_ylim(1e-8, 1.6)
    axes[0].set_ylabel("singular value over the largest", fontsize=10)
    legend(axes[0])
    return figure
