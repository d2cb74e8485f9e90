"""Permutations of tokens by CSP and Sliceformer, for each channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.analysis.drawing import COLOURS, chosen_layers, new_figure, picture, tidy
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
from rifflemix.lab.analysis.kinds.measures import displacement, distinct_permutations
from rifflemix.lab.analysis.maps import permutation_of, takes_ranks
from rifflemix.lab.analysis.trace import Call, trace, undisturbed

_SHOWN_LAYERS = 3
_PIXELS = 256  # of a map, and bars of a histogram; longer sequences are binned
_WINDOWS = (
    "their causal form, which may send a value to several tokens or to none; pattern, spectrum and "
    "collapse support it"
)


@dataclass
class LayerPermutations:
    """Permutations of one layer over all samples.

    Attributes:
        name: name of the layer.
        channels: number of permuted channels.
        index: (N, C) of the first sample.
        values: (N, C) of the first sample, permuted.
        distinct: number of different permutations among the channels, per sample.
        commonest: share of channels with the most frequent permutation, per sample.
        moves: positions moved forward -> number of values.
        order_change: relative change of the outputs if the input tokens are reordered, per batch.
    """

    name: str
    channels: int
    index: NDArray[np.int64]
    values: NDArray[np.float64]
    distinct: list[int] = field(default_factory=list)
    commonest: list[float] = field(default_factory=list)
    moves: Counter[int] = field(default_factory=Counter)
    order_change: list[float] = field(default_factory=list)

    @property
    def moved_share(self) -> float:
        """Share of values that the permutation moves."""
        return 1.0 - self.moves[0] / sum(self.moves.values())

    @property
    def median_distance(self) -> float:
        """Median of |displacement| over all values."""
        distances: Counter[int] = Counter()
        for move, count in self.moves.items():
            distances[abs(move)] += count
        reached = np.cumsum([distances[distance] for distance in sorted(distances)])
        return float(sorted(distances)[int(np.searchsorted(reached, reached[-1] / 2))])

    @property
    def displacements(self) -> dict[str, int]:
        """Positions moved forward -> number of values, in order."""
        return {str(move): self.moves[move] for move in sorted(self.moves)}


def layer_permutations(subject: Subject, tick: Tick = silent) -> list[LayerPermutations]:
    """Return the permutations of every layer that permutes tokens.

    Raises:
        InputError: no layer of the model permutes tokens.
    """
    found: dict[str, LayerPermutations] = {}
    windows = False
    for calls in progress(subject, trace(subject.model, subject.batches), tick):
        for call in calls:
            windows = windows or takes_ranks(call.module)
            index = permutation_of(call)
            if index is None:
                continue
            if call.name not in found:
                found[call.name] = _new_layer(call, index)
            _add(found[call.name], call, index)
        if not found:
            break
    if not found:
        got = _WINDOWS if windows else "none"
        raise InputError(f"{subject.label}: expected a model with CSP or Sliceformer, got {got}")
    return list(found.values())


def _new_layer(call: Call, index: Tensor) -> LayerPermutations:
    with undisturbed(call.module):
        values = call.module.value(call.x[:1]).gather(1, index[:1])[0]
    valid = slice(None) if call.key_padding_mask is None else ~call.key_padding_mask[0].cpu()
    return LayerPermutations(
        call.name,
        index.shape[2],
        index[0].cpu().numpy(),
        values.double().cpu()[valid].numpy(),
    )


def _add(layer: LayerPermutations, call: Call, index: Tensor) -> None:
    numbers, shares = distinct_permutations(index)
    layer.distinct += numbers.tolist()
    layer.commonest += shares.tolist()
    moves, counts = displacement(index, call.key_padding_mask).unique(return_counts=True)
    layer.moves.update(dict(zip(moves.tolist(), counts.tolist(), strict=True)))
    layer.order_change.append(order_change(call))


def order_change(call: Call) -> float:
    """Measure how much reordered input tokens change a layer's outputs.

    The result is the Frobenius norm of the difference divided by the norm of the outputs. It is 0
    for a layer that ignores the order, such as a sort of all tokens. Only the valid tokens of each
    sample are shuffled.

    Source: Sliceformer, section 4, on permutation invariance.
    """
    mask = call.key_padding_mask
    draws = torch.Generator().manual_seed(0)
    shuffled = call.x.clone()
    for sample in range(len(shuffled)):
        valid = torch.arange(shuffled.shape[1])
        if mask is not None:
            valid = valid[~mask[sample].cpu()]
        order = valid[torch.randperm(len(valid), generator=draws)]
        shuffled[sample, valid] = call.x[sample, order]
    with undisturbed(call.module):
        y = call.module(shuffled, key_padding_mask=mask)
    size = call.y.double().norm()
    return float((y.double() - call.y.double()).norm() / size.clamp_min(1e-300))


def permutation(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Show permutations, displacements, and the number of different permutations.

    Subjects without such layers are left out, unless no subject has any.

    Source: CSP, equations (3) to (5); Sliceformer, sections 3 and 4.
    """
    found = of_those_that_have(subjects, lambda subject: layer_permutations(subject, tick))
    return layer_finding(
        found,
        _COLUMNS,
        sentence=_sentence,
        caption=_CAPTION,
        figure=_figure(found),
        arrays=lambda layer: {"/index": layer.index},
    )


_COLUMNS = (
    Column("Channels", "channels", "d"),
    Column("Different permutations", "distinct", ".1f"),
    Column("Share of the most frequent, %", "commonest_share", ".1f", "commonest", 100),
    Column("Values that move, %", "moved_share", ".1f", scale=100),
    Column("Median distance, tokens", "median_distance", ".0f"),
    Column("Change when tokens are reordered", "order_change", ".2g"),
    Column("", "displacements"),
)
_CAPTION = (
    "Left of each row: where each output token (down) comes from in the input (across), "
    "summed over the channels of one sample; brighter is more channels. Middle: the values "
    "after the permutation, purple below 0, orange above, each channel over its largest. "
    "Right: how far values move, in tokens, over all samples and channels."
)


def _sentence(label: str, layers: Sequence[LayerPermutations]) -> str:
    distinct = np.mean([np.mean(layer.distinct) for layer in layers])
    commonest = np.mean([np.mean(layer.commonest) for layer in layers])
    change = np.mean([np.mean(layer.order_change) for layer in layers])
    return (
        f"{label}: {distinct:.1f} different permutations among {layers[0].channels} channels on "
        f"average, {100 * commonest:.0f} % of the channels share the most frequent; a layer's "
        f"outputs change by {change:.2g} of their size when its input tokens are reordered."
    )


def _figure(found: dict[str, list[LayerPermutations]]) -> Figure:
    """Draw map, permuted values and displacements, one row per chosen layer."""
    drawn = [
        (label, layer)
        for label, layers in found.items()
        for layer in chosen_layers(layers, _SHOWN_LAYERS if len(found) == 1 else 1)
    ]
    figure = new_figure(2.8 * len(drawn) + 0.2)
    grid = figure.subplots(len(drawn), 3, squeeze=False, width_ratios=(1, 1.4, 1.6))
    for (label, layer), (left, middle, right) in zip(drawn, grid, strict=True):
        length = layer.index.shape[0]
        bins = min(length, _PIXELS)
        bin_of = np.arange(length) * bins // length
        counts = np.zeros((bins, bins))
        np.add.at(counts, (bin_of[:, None], bin_of[layer.index]), 1)
        picture(left, np.sqrt(counts), title=f"{label}, {layer.name}")
        left.set_xlabel("from token", fontsize=9)
        left.set_ylabel("to token", fontsize=9)
        largest = np.abs(layer.values).max(axis=0, keepdims=True)
        scaled = layer.values / np.maximum(largest, 1e-12)
        picture(
            middle, scaled, title="permuted values", cmap="PuOr_r", vmin=-1, vmax=1, aspect="auto"
        )
        middle.set_xlabel("channel", fontsize=9)
        middle.set_ylabel("token", fontsize=9)
        _draw_moves(right, layer.moves)
    return figure


def _draw_moves(axes: Axes, moves: Counter[int]) -> None:
    """Draw the share of values for each displacement."""
    width = -(-(max(moves) - min(moves) + 1) // _PIXELS)
    binned: Counter[int] = Counter()
    for move, count in moves.items():
        binned[move // width] += count
    places = [(place + 0.5) * width - 0.5 for place in binned]
    shares = [100 * count / sum(moves.values()) for count in binned.values()]
    axes.bar(places, shares, width=width, color=COLOURS[0])
    each = "" if width == 1 else f"\nin {width} tokens"
    tidy(axes, title="displacements", x="tokens forward", y=f"share of values, %{each}")
