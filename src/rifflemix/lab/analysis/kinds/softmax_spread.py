"""Spread of attention weights over sequence length, and deviation from doubly stochastic maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.analysis.drawing import (
    GREY,
    from_zero,
    layer_ticks,
    legend,
    line_style,
    new_figure,
    tidy,
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
from rifflemix.lab.analysis.maps import matrix_of
from rifflemix.lab.analysis.subjects import over_training
from rifflemix.lab.analysis.trace import Call, trace, undisturbed

_DRAWS = 200
_LEAST_TOKENS = 4
MOST_TOKENS = 512


@dataclass
class LayerSpread:
    """Attention weights of one layer.

    Attributes:
        name: name of the layer.
        spread: tokens -> standard deviation of the weights in a row, per sample.
        rows, columns: mean distance of the row and column sums from 1, per sample.
    """

    name: str
    spread: dict[int, list[float]] = field(default_factory=dict)
    rows: list[float] = field(default_factory=list)
    columns: list[float] = field(default_factory=list)

    @property
    def deviation(self) -> dict[int, float]:
        """Tokens -> mean standard deviation of the weights in a row."""
        return {n: float(np.mean(values)) for n, values in self.spread.items()}


@dataclass
class Moment:
    """Attention maps of a model at one step of its training.

    Attributes:
        step: number of updates.
        rows, columns: mean distance of the row and column sums from 1, per layer.
    """

    step: int
    rows: list[float]
    columns: list[float]


def spread_of(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the mean standard deviation within rows: (B,).

    The mean is over rows and heads. Only valid tokens count. Samples without a valid token are left
    out, here and in `sums_of`.

    Args:
        weights: (B, H, N, N).
        mask: (B, N) bool, True = padding.
    """
    return _stack([w.std(-1, correction=0).mean() for w in _each(weights, mask)])


def sums_of(weights: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute the mean distances of row and column sums from 1.

    Each of the two results is (B,).
    """
    valid = _each(weights, mask)
    rows = _stack([(w.sum(-1) - 1.0).abs().mean() for w in valid])
    columns = _stack([(w.sum(-2) - 1.0).abs().mean() for w in valid])
    return rows, columns


def _stack(values: list[Tensor]) -> Tensor:
    return torch.stack(values) if values else torch.zeros(0, dtype=torch.float64)


def _each(weights: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Return (H, n, n) for the n valid tokens of each sample.

    Samples without valid tokens are left out.
    """
    if mask is None:
        return list(weights.double())
    there = [~padding for padding in mask]
    samples = zip(weights.double(), there, strict=True)
    return [w[:, valid][:, :, valid] for w, valid in samples if valid.any()]


def softmax_of_noise(lengths: Sequence[int]) -> list[float]:
    """Compute the mean standard deviation of softmax of normal vectors.

    There is one value per length.

    Source: Sliceformer (Yuan and Xu), Figure 2.
    """
    draws = torch.Generator().manual_seed(0)
    values = []
    for length in lengths:
        noise = torch.randn(_DRAWS, length, generator=draws, dtype=torch.float64)
        values.append(float(noise.softmax(-1).std(-1, correction=0).mean()))
    return values


def layer_spreads(subject: Subject, tick: Tick = silent) -> list[LayerSpread]:
    """Measure weights in prefixes of samples, and sums in whole samples.

    Raises:
        InputError: no layer has attention weights.
    """
    found: dict[str, LayerSpread] = {}
    for calls in progress(subject, trace(subject.model, subject.batches), tick):
        for call in calls:
            if call.x.shape[1] <= MOST_TOKENS:
                _add(found, call)
        if not found:
            break
    if not found:
        raise InputError(
            f"{subject.label}: expected mixers with attention weights on at most {MOST_TOKENS} "
            "tokens, got none"
        )
    return list(found.values())


def moments_of(subject: Subject, tick: Tick = silent) -> list[Moment]:
    """Measure the sums at each kept step of a run.

    The steps are the start and each evaluation. Runs without kept weights return an empty list.
    """
    found = []
    for done, (step, then) in enumerate(over_training(subject)):
        tick(f"{subject.label} over training", done, len(subject.moments))
        layers: dict[str, LayerSpread] = {}
        for calls in trace(then.model, then.batches):
            for call in calls:
                if call.x.shape[1] <= MOST_TOKENS:
                    _add_sums(layers, call)
        found.append(
            Moment(
                step,
                [float(np.mean(layer.rows)) for layer in layers.values()],
                [float(np.mean(layer.columns)) for layer in layers.values()],
            )
        )
    return found


def _add_sums(found: dict[str, LayerSpread], call: Call) -> Tensor | None:
    """Add the sums of a layer's matrix and return the matrix.

    Returns None if the layer has no matrix.
    """
    whole = matrix_of(call)
    if whole is not None:
        layer = found.setdefault(call.name, LayerSpread(call.name))
        rows, columns = sums_of(whole, call.key_padding_mask)
        layer.rows += rows.tolist()
        layer.columns += columns.tolist()
    return whole


def _add(found: dict[str, LayerSpread], call: Call) -> None:
    whole = _add_sums(found, call)
    if whole is None or call.key_padding_mask is not None:
        return
    spread = found[call.name].spread
    for length in lengths_up_to(call.x.shape[1]):
        weights = whole if length == call.x.shape[1] else matrix_of(_shortened(call, length))
        if weights is not None:
            spread.setdefault(length, []).extend(spread_of(weights).tolist())


def lengths_up_to(count: int) -> list[int]:
    """Return powers of two from 4 to below `count`, then `count`."""
    lengths, length = [], _LEAST_TOKENS
    while length < count:
        lengths.append(length)
        length *= 2
    return [*lengths, count]


def _shortened(call: Call, length: int) -> Call:
    """Run the layer on the first tokens of its input."""
    x = call.x[:, :length]
    with undisturbed(call.module):
        y = call.module(x)
    return Call(call.name, call.module, x, y, None)


def softmax_spread(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Show the spread of attention weights and the deviation of sums.

    The spread is shown against N, the deviation from 1 by layer.

    Source: Sliceformer (Yuan and Xu), Figure 2; Sander et al. 2022 for the sums.
    """
    found = of_those_that_have(subjects, lambda subject: layer_spreads(subject, tick))
    training = {
        subject.label: moments_of(subject, tick)
        for subject in subjects
        if subject.label in found and subject.moments
    }
    longest = max(
        n for layers in found.values() for layer in layers for n in layer.spread or {4: []}
    )
    lengths = lengths_up_to(max(longest, 4096))
    noise = softmax_of_noise(lengths)
    finding = layer_finding(
        found,
        _COLUMNS,
        sentence=_sentence,
        caption=_caption(bool(training)),
        figure=_figure(found, training, lengths, noise),
    )
    of_noise = (
        f"softmax of normal scores: a deviation of {noise[0]:.3g} at {lengths[0]} entries and "
        f"{noise[-1]:.3g} at {lengths[-1]}."
    )
    over_steps = (_sentence_of(label, moments) for label, moments in training.items())
    return replace(
        finding,
        summary=(of_noise, *finding.summary, *over_steps),
        data={
            "noise": {"tokens": lengths, "deviation": noise},
            **finding.data,
            "training": {
                label: [
                    {"step": at.step, "row_sums": at.rows, "column_sums": at.columns}
                    for at in moments
                ]
                for label, moments in training.items()
            },
        },
    )


_COLUMNS = (
    Column(
        "Deviation by tokens",
        value=lambda layer: ", ".join(f"{n}: {v:.3g}" for n, v in sorted(layer.deviation.items())),
    ),
    Column("", "deviation", value=lambda layer: {str(n): v for n, v in layer.deviation.items()}),
    Column("Row sums from 1", "row_sums", ".3g", "rows"),
    Column("Column sums from 1", "column_sums", ".3g", "columns"),
)


def _caption(with_training: bool) -> str:
    training = (
        "Below: the same over training, mean over layers, with the weights of the start and of "
        "every evaluation. "
    )
    return (
        "Left: the standard deviation of the weights in a row of each model's attention maps, "
        "mean over layers, when a layer gets the first N tokens only; grey: softmax of normal "
        "scores, and 1 / N dotted for comparison. Right: how far row and column sums are from "
        "1, the mark of a doubly stochastic map, by layer; rows hollow, columns filled. "
        f"{training if with_training else ''}"
        "Means over samples; padded samples have no part in the left picture."
    )


def _sentence(label: str, layers: Sequence[LayerSpread]) -> str:
    rows = float(np.mean([np.mean(layer.rows) for layer in layers]))
    columns = float(np.mean([np.mean(layer.columns) for layer in layers]))
    sums = f"row sums lie {rows:.2g} from 1 and column sums {columns:.2g}"
    curve = mean_curve(layers)
    if not curve:
        return f"{label}: {sums}."
    first, last = min(curve), max(curve)
    return (
        f"{label}: a deviation of {curve[first]:.3g} at {first} tokens and {curve[last]:.3g} at "
        f"{last}; {sums}."
    )


def _sentence_of(label: str, moments: Sequence[Moment]) -> str:
    first, last = moments[0], moments[-1]
    return (
        f"{label} over training: column sums lie {np.mean(first.columns):.2g} from 1 after "
        f"{first.step} steps and {np.mean(last.columns):.2g} after {last.step}."
    )


def mean_curve(layers: Sequence[LayerSpread]) -> dict[int, float]:
    """Return tokens -> standard deviation, the mean over samples and layers."""
    lengths = sorted({n for layer in layers for n in layer.spread})
    return {
        n: float(np.mean([layer.deviation[n] for layer in layers if n in layer.spread]))
        for n in lengths
    }


def _figure(
    found: dict[str, list[LayerSpread]],
    training: dict[str, list[Moment]],
    lengths: Sequence[int],
    noise: Sequence[float],
) -> Figure:
    figure = new_figure(7.2 if training else 4.0)
    grid = figure.add_gridspec(2 if training else 1, 2)
    left, right = (figure.add_subplot(grid[0, column]) for column in range(2))
    left.loglog(lengths, noise, color=GREY, linewidth=3, label="softmax of normal scores")
    left.loglog(lengths, [1 / n for n in lengths], ":", color="#444444", label="1 / N")
    for number, (label, layers) in enumerate(found.items()):
        curve = mean_curve(layers)
        style = line_style(number)
        if curve:
            left.loglog(list(curve), list(curve.values()), label=label, **style)
        at = range(1, len(layers) + 1)
        right.plot(at, [np.mean(layer.columns) for layer in layers], label=label, **style)
        right.plot(at, [np.mean(layer.rows) for layer in layers], **style | _HOLLOW)
    tidy(left, title="weights within a row", x="tokens N", y="standard deviation")
    tidy(right, title="sums of columns (rows hollow)", x="layer", y="mean distance from 1")
    from_zero(right)
    layer_ticks(right, max(map(len, found.values())))
    legend(left)
    legend(right)
    if training:
        _draw_training(figure.add_subplot(grid[1, :]), training, list(found))
    return figure


_HOLLOW = {"linestyle": ":", "markerfacecolor": "white"}


def _draw_training(axes: Axes, training: dict[str, list[Moment]], labels: Sequence[str]) -> None:
    for label, moments in training.items():
        style, steps = line_style(labels.index(label)), [at.step for at in moments]
        axes.plot(steps, [np.mean(at.columns) for at in moments], label=label, **style)
        axes.plot(steps, [np.mean(at.rows) for at in moments], **style | _HOLLOW)
    tidy(
        axes,
        title="sums of columns over training (rows hollow)",
        x="optimizer steps",
        y="mean distance from 1",
    )
    from_zero(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes)
