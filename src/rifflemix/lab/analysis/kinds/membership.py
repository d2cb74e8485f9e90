"""Memberships of tokens in the groups of the heads of token statistics (TSSA)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.analysis.drawing import (
    COLOURS,
    GREY,
    as_grid,
    chosen_layers,
    has_images,
    image_of,
    inputs_of,
    new_figure,
    picture,
    text_of,
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
from rifflemix.lab.analysis.trace import Call, trace, undisturbed
from rifflemix.mixers.tssa import TSSA

_SAMPLES, _LAYERS = 2, 3
_CHARACTERS, _ACROSS = 160, 40
_ROUNDING = 1e-4


@dataclass
class LayerMembership:
    """Memberships in one layer.

    Attributes:
        name: name of the layer.
        first: (B, H, N) memberships in the first batch.
        token_entropy: nats of the distribution of a token over the heads, the mean over the tokens
            of each sample.
        head_share: (H,) mean membership of the tokens in each head, per sample.
        head_entropy: (H,) entropy of each head's distribution over the tokens divided by its
            maximum, per sample.
        largest_error: largest difference between a sum over heads and 1.
    """

    name: str
    first: Tensor
    token_entropy: list[float] = field(default_factory=list)
    head_share: list[NDArray[np.float64]] = field(default_factory=list)
    head_entropy: list[NDArray[np.float64]] = field(default_factory=list)
    largest_error: float = 0.0

    @property
    def shares(self) -> list[float]:
        """Mean share of the tokens in each head, over all samples."""
        return np.mean(self.head_share, 0).tolist()


def layer_memberships(subject: Subject, tick: Tick = silent) -> list[LayerMembership]:
    """Return the memberships of every TSSA layer.

    The function checks that the memberships of each token sum to 1.

    Raises:
        InputError: the model has no TSSA layer.
        RunFailed: memberships of a token do not sum to 1.
    """
    found: dict[str, LayerMembership] = {}
    for calls in progress(subject, trace(subject.model, subject.batches), tick):
        for call in calls:
            if isinstance(call.module, TSSA):
                _add(found, call)
        if not found:
            break
    if not found:
        raise InputError(f"{subject.label}: expected a model with mixer tssa, got none")
    for layer in found.values():
        if not layer.largest_error < _ROUNDING:
            raise RunFailed(
                f"{subject.label}, {layer.name}: memberships of a token sum to 1 up to "
                f"{layer.largest_error:.3g}; the weights may not be finite"
            )
    return list(found.values())


def _add(found: dict[str, LayerMembership], call: Call) -> None:
    mask = call.key_padding_mask
    with undisturbed(call.module):
        membership = call.module.membership(call.x, key_padding_mask=mask).double().cpu()
    layer = found.setdefault(call.name, LayerMembership(call.name, membership))
    for sample, whole in enumerate(membership):
        valid = whole if mask is None else whole[:, ~mask[sample].cpu()]
        if not valid.shape[1]:
            continue
        error = float((valid.sum(0) - 1.0).abs().max())
        layer.largest_error = max(layer.largest_error, error if math.isfinite(error) else math.inf)
        layer.token_entropy.append(float(entropy(valid, 0).mean()))
        layer.head_share.append((valid.mean(1)).numpy())
        within = valid / valid.sum(1, keepdim=True).clamp_min(1e-300)
        most = math.log(max(valid.shape[1], 2))
        layer.head_entropy.append((entropy(within, 1) / most).numpy())


def membership(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Show memberships over the image or the text, and their entropies.

    Source: Wu et al. 2024 (ToST), Figures 4b and 9.
    """
    found = of_those_that_have(subjects, lambda subject: layer_memberships(subject, tick))
    drawn = next(subject for subject in subjects if subject.label in found)
    is_image = has_images(drawn)
    if not is_image and text_of(drawn, 0, 1) is None:
        raise InputError(f"{drawn.label}: expected images or token ids, got vectors")
    layers = found[drawn.label]
    return layer_finding(
        found,
        _COLUMNS,
        sentence=_sentence,
        caption=_caption(is_image, layers[0].first.shape[1]),
        figure=_images(drawn, layers) if is_image else _texts(drawn, layers),
        arrays=lambda layer: {"": layer.first[: _SAMPLES * 4].numpy()},
    )


_COLUMNS = (
    Column("Entropy over heads, nats", "entropy", value="token_entropy"),
    Column("Of at most", value=lambda layer: math.log(len(layer.head_share[0]))),
    Column("Largest share of a head, %", "", ".1f", lambda layer: max(layer.shares), 100),
    Column("Smallest, %", "", ".1f", lambda layer: min(layer.shares), 100),
    Column("Entropy over tokens, share of the most", value="head_entropy"),
    Column("", "head_share", value=lambda layer: layer.shares),
    Column("", "head_entropy", value=lambda layer: np.mean(layer.head_entropy, 0).tolist()),
    Column("", "largest_error_of_sums", value="largest_error"),
)


def _caption(is_image: bool, heads: int) -> str:
    what = (
        "The probability with which each token belongs to each head's group, dark the least and "
        "bright the most of the figure, over the image. Its patches are the tokens."
        if is_image
        else "Each token of the first sample on the colour of its likeliest head."
    )
    return f"{what} Every token's {heads} probabilities sum to 1 (checked)."


def _sentence(label: str, layers: Sequence[LayerMembership]) -> str:
    most = math.log(layers[0].first.shape[1])
    values = [float(np.mean(layer.token_entropy)) for layer in layers]
    return (
        f"{label}: the entropy of a token over the heads goes from {values[0]:.2f} nats in the "
        f"first layer to {values[-1]:.2f} in the last, of at most {most:.2f}; sums over heads are "
        f"1 to within {max(layer.largest_error for layer in layers):.1g}."
    )


def _images(subject: Subject, layers: Sequence[LayerMembership]) -> Figure:
    """Draw one row per sample and layer.

    The columns are the image and each head.
    """
    heads = min(layers[0].first.shape[1], 8)
    chosen = chosen_layers(list(enumerate(layers, 1)), _LAYERS)
    samples = range(min(_SAMPLES, len(layers[0].first)))
    size = 9.6 / (heads + 1)
    figure = new_figure(len(samples) * len(chosen) * (size + 0.22) + 0.6)
    grid = figure.subplots(len(samples) * len(chosen), heads + 1, squeeze=False)
    shown = None
    drawn = torch.stack([layer.first[s] for _, layer in chosen for s in samples])
    low, high = float(drawn.min()), float(drawn.max())
    for row, (sample, (number, layer)) in enumerate((s, n) for s in samples for n in chosen):
        picture(grid[row, 0], image_of(subject, sample), cmap="gray")
        grid[row, 0].set_ylabel(f"image {sample + 1}\nlayer {number}", fontsize=9)
        maps = as_grid(layer.first[sample])
        for head in range(heads):
            title = f"head {head + 1}" if row == 0 else ""
            shown = picture(grid[row, 1 + head], maps[head], title=title, vmin=low, vmax=high)
    if shown is not None:
        bar = figure.colorbar(shown, ax=grid, location="bottom", shrink=0.4, aspect=40, pad=0.01)
        bar.set_label("probability of the group", fontsize=9)
    return figure


def _texts(subject: Subject, layers: Sequence[LayerMembership]) -> Figure:
    """Draw characters on the color of their most likely head."""
    count = len(inputs_of(subject.batches[0])[0])
    # A class token may come first. The tokens of a decoder do not match the ids of the inputs.
    fitting = [layer for layer in layers if layer.first.shape[2] - count in (0, 1)]
    if not fitting:
        got = layers[0].first.shape[2]
        raise InputError(f"{subject.label}: expected a token for each of {count} ids, got {got}")
    chosen = chosen_layers(fitting, _LAYERS)
    characters = text_of(subject, 0, _CHARACTERS) or []
    likeliest = [_likeliest(layer.first[0, :, -count:][:, : len(characters)]) for layer in chosen]
    heads = layers[0].first.shape[1]
    colours = _colours_of(heads, [h for row in likeliest for h in row if h is not None])
    lines = -(-len(characters) // _ACROSS)
    figure = new_figure((0.3 * lines + 0.4) * len(chosen) + 0.5)
    grid = figure.subplots(len(chosen), 1, squeeze=False)
    for layer, heads_of, axes in zip(chosen, likeliest, grid[:, 0], strict=True):
        for place, (character, head) in enumerate(zip(characters, heads_of, strict=True)):
            if head is None:
                continue
            row, column = divmod(place, _ACROSS)
            box = {"boxstyle": "square,pad=0.25", "facecolor": colours[head], "edgecolor": "none"}
            axes.text(
                column,
                -row,
                character[:3],
                ha="center",
                va="center",
                fontsize=9 if len(character) == 1 else 6,
                family="monospace",
                color=_ink(colours[head]),
                bbox=box,
            )
        axes.set_xlim(-1, _ACROSS)
        axes.set_ylim(-lines + 0.4, 0.6)
        axes.set_title(f"layer {layers.index(layer) + 1}", loc="left", fontsize=10)
        axes.axis("off")
    key = {f"head {n + 1}": colour for n, colour in enumerate(colours) if colour != GREY}
    if GREY in colours:
        key["other heads"] = GREY
    figure.legend(
        [Patch(color=colour) for colour in key.values()],
        list(key),
        loc="outside lower center",
        ncols=8,
        frameon=False,
        fontsize=9,
    )
    return figure


def _likeliest(membership: Tensor) -> list[int | None]:
    """Return the most likely of (H, N) heads for each token.

    Padding gets None.
    """
    is_there = membership.sum(0) > 0
    pairs = zip(membership.argmax(0).tolist(), is_there.tolist(), strict=True)
    return [head if there else None for head, there in pairs]


def _colours_of(heads: int, likeliest: Sequence[int]) -> list[str]:
    """Assign a color to each head.

    If there are too few colors, rare heads are gray.
    """
    if heads <= len(COLOURS):
        return list(COLOURS[:heads])
    common = [head for head, _ in Counter(likeliest).most_common(len(COLOURS))]
    return [COLOURS[common.index(h)] if h in common else GREY for h in range(heads)]


def _ink(colour: str) -> str:
    """Return white or black, depending on the luminance of the background."""
    red, green, blue, _ = to_rgba(colour)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
