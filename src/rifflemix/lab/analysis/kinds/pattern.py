"""Show which outputs depend on which tokens, after one layer and after several."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.lab.analysis.drawing import COLOURS, DPI, new_figure, picture
from rifflemix.lab.analysis.finding import Finding, Subject, Tick, silent
from rifflemix.lab.analysis.trace import Call, TorchAttention, one_stream, trace, undisturbed

LAYERS = 3
MOST_TOKENS = 1024
_PAIRS_AT_ONCE = 2**22  # bounds the memory for gradients of several outputs at once


def reach_of(call: Call, sample: int = 0) -> NDArray[np.bool_]:
    """Find which outputs of a layer depend on which inputs.

    The result is for one sample. The gradient is taken of a random combination of the channels of
    output n. Output n depends on input m if the gradient with respect to token m is not zero. The
    choice of the combination matters only on a set of measure zero.

    Args:
        call: a call that `trace` recorded.
        sample: index of the sample in the batch.

    Returns:
        (N, N), rows are outputs, without padded tokens.

    Raises:
        InputError: the sample has more tokens than the limit.
    """
    x = call.x[sample]
    mask = None if call.key_padding_mask is None else call.key_padding_mask[sample]
    layer = call.module
    if isinstance(layer, TorchAttention):
        layer = layer.of_sample(sample)
    length = len(x)
    if length > MOST_TOKENS:
        raise bad_argument("tokens", f"at most {MOST_TOKENS} for a pattern", length)
    draws = torch.Generator().manual_seed(0)
    weights = torch.randn(x.shape[-1], generator=draws, dtype=torch.float64).to(x)
    rows = []
    at_once = max(_PAIRS_AT_ONCE // length**2, 1)
    for first in range(0, length, at_once):
        outputs = torch.arange(first, min(first + at_once, length), device=x.device)
        rows.append(_gradients(layer, x, mask, outputs, weights))
    reach = torch.cat(rows).cpu().numpy()
    valid = slice(None) if mask is None else np.flatnonzero(~mask.cpu().numpy())
    return reach[valid][:, valid]


def _gradients(
    mixer: torch.nn.Module, x: Tensor, mask: Tensor | None, outputs: Tensor, weights: Tensor
) -> Tensor:
    """Check for nonzero gradients of these outputs: (len(outputs), N) bool."""
    count = len(outputs)
    with undisturbed(mixer), torch.enable_grad():
        copies = x.detach().expand(count, -1, -1).clone().requires_grad_()
        masks = None if mask is None else mask.expand(count, -1)
        y = mixer(copies, key_padding_mask=masks)
        chosen = y[torch.arange(count, device=x.device), outputs] @ weights
        if not chosen.requires_grad:
            return torch.zeros(count, x.shape[0], dtype=torch.bool, device=x.device)
        (gradient,) = torch.autograd.grad(chosen.sum(), copies)
    return gradient.abs().amax(-1) > 0


def reach_after(layers: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """Find which outputs depend on which inputs after each layer.

    Each layer has a skip connection.
    """
    found: list[NDArray[np.bool_]] = []
    so_far = np.eye(len(layers[0]), dtype=bool)
    for layer in layers:
        step = (layer | np.eye(len(layer), dtype=bool)).astype(np.float32)
        so_far = step @ so_far.astype(np.float32) > 0
        found.append(so_far)
    return found


def _first_layers(subject: Subject) -> list[Call]:
    """Return the first mixers of one sequence.

    They end at the first change in the number of tokens.
    """
    calls = one_stream(next(trace(subject.model, [subject.batches[0]], cross=True)))
    length = calls[0].x.shape[1]
    return list(itertools.takewhile(lambda call: call.x.shape[1] == length, calls))[:LAYERS]


def pattern(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Show which tokens are connected after one, two and three layers.

    The table contains the share of connected pairs. The first sample runs through the layers of the
    model, because the connections of a sort depend on the sorted values. In an encoder-decoder
    model, these are the encoder layers.

    Source: Dimension Mixer, Figure 4.
    """
    found: dict[str, list[NDArray[np.bool_]]] = {}
    for subject in subjects:
        tick(subject.label, 0, LAYERS)
        layers = []
        for done, call in enumerate(_first_layers(subject), start=1):
            layers.append(reach_of(call))
            tick(subject.label, done, LAYERS)
        found[subject.label] = reach_after(layers)
    shares = {label: [float(r.mean()) for r in reached] for label, reached in found.items()}
    return Finding(
        summary=tuple(_sentence(label, of) for label, of in shares.items()),
        headers=("Model", "After layers", "Tokens", "Pairs connected, %"),
        rows=tuple(
            (label, str(number), str(len(found[label][0])), f"{100 * share:.2f}")
            for label, of in shares.items()
            for number, share in enumerate(of, start=1)
        ),
        caption=(
            "Blue: the output at a token (down) depends on the input at another (across), by the "
            "layers so far and the skip connections around them, for the first sample. Measured "
            "by gradients: a soft sort (Sinkhorn) lets every block depend on every other, if only "
            "a little."
        ),
        data={
            "models": {
                label: {"tokens": len(found[label][0]), "connected_share": of}
                for label, of in shares.items()
            }
        },
        arrays={
            f"{label}/after{number}": reached
            for label, all_reached in found.items()
            for number, reached in enumerate(all_reached, start=1)
        },
        figure=_figure(found),
    )


def _sentence(label: str, shares: Sequence[float]) -> str:
    texts = [f"{100 * share:.0f} %" for share in shares]
    layers = ", ".join(str(number) for number in range(1, len(shares) + 1))
    return f"{label}: {', '.join(texts)} of all pairs of tokens connected after layers {layers}."


def _figure(found: dict[str, list[NDArray[np.bool_]]]) -> Figure:
    """Draw one column per model and one row per number of layers."""
    columns = min(len(found), 7)
    bands = -(-len(found) // columns)
    deep = max(len(reached) for reached in found.values())
    size = min(9.6 / columns, 3.0)
    figure = new_figure(bands * deep * (size + 0.3) + 0.3)
    grid = figure.subplots(bands * deep, columns, squeeze=False)
    for place in grid.flat:
        place.set_visible(False)
    for position, (label, reached) in enumerate(found.items()):
        band, column = divmod(position, columns)
        for number, pattern_of in enumerate(reached):
            place = grid[band * deep + number, column]
            place.set_visible(True)
            shown = _coarser(pattern_of, round(size * DPI))
            image = np.ones((*shown.shape, 3))
            image[shown] = _rgb(COLOURS[0])
            share = f"{100 * pattern_of.mean():.0f} %"
            title = f"{label}\n{share}" if number == 0 else share
            picture(place, image, title=title)
            if column == 0:
                layers = "1 layer" if number == 0 else f"{number + 1} layers"
                place.set_ylabel(f"after {layers}\noutput token", fontsize=9)
            if number == len(reached) - 1:
                place.set_xlabel("input token", fontsize=9)
    return figure


def _coarser(reached: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Reduce to at most `most` rows and columns.

    A cell is set if any of its pairs is connected.
    """
    every = -(-len(reached) // most)
    starts = np.arange(0, len(reached), every)
    over_rows = np.logical_or.reduceat(reached, starts, axis=0)
    return np.logical_or.reduceat(over_rows, starts, axis=1)


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
