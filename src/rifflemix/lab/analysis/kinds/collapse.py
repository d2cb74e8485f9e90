"""Rank over depth, with and without skip connections, norms and MLPs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from torch.nn.functional import layer_norm

from rifflemix.errors import InputError
from rifflemix.lab.analysis.drawing import line_style, new_figure, tidy
from rifflemix.lab.analysis.finding import Finding, Subject, Tick, progress, silent
from rifflemix.lab.analysis.kinds.measures import (
    collapse_bound,
    effective_rank,
    rank_residual,
    second_over_first,
    singular_values,
    stable_rank,
)
from rifflemix.lab.analysis.trace import Call, find_layers, one_stream, trace, undisturbed
from rifflemix.mixers.permutation_mixer import PermutationMixer
from rifflemix.nn.block import Block

ALONE, NORM, SKIP, WHOLE = "mixers alone", "with norm", "with norm and skip", "whole blocks"


@dataclass
class Depths:
    """Measures of one stack at depths 0 to L: for each depth, a list with one value per sample."""

    residual: list[list[float]] = field(default_factory=list)
    effective: list[list[float]] = field(default_factory=list)
    stable: list[list[float]] = field(default_factory=list)
    second: list[list[float]] = field(default_factory=list)

    def add(self, depth: int, x: Tensor, mask: Tensor | None) -> None:
        """Measure tokens (B, N, C) after `depth` layers."""
        if depth == len(self.residual):
            for measure in (self.residual, self.effective, self.stable, self.second):
                measure.append([])
        values = singular_values(x, mask)
        self.residual[depth] += rank_residual(x, mask).tolist()
        self.effective[depth] += effective_rank(values).tolist()
        self.stable[depth] += stable_rank(values).tolist()
        self.second[depth] += second_over_first(values).tolist()

    def means(self) -> dict[str, list[float]]:
        """Return the mean of each measure over samples, by depth."""
        return {
            name: [float(np.mean(samples)) for samples in getattr(self, name)]
            for name in ("residual", "effective", "stable", "second")
        }


@dataclass
class Collapse:
    """Results of one subject: measures by stack, and theorem 1 if it applies to the layers."""

    stacks: dict[str, Depths] = field(default_factory=dict)
    bound: list[float] | None = None
    bounded_residual: list[float] | None = None
    change: list[float] | None = None


def collapse_of(subject: Subject, tick: Tick = silent) -> Collapse:
    """Run the subject's mixers as separate stacks, and its blocks unchanged."""
    found = Collapse()
    traced = trace(subject.model, subject.batches, cross=True)
    for calls in map(one_stream, progress(subject, traced, tick)):
        if len({call.x.shape for call in calls}) == 1:
            _run_stacks(calls, found.stacks)
            if found.bound is None:
                _check_theorem(calls, found)
    _run_blocks(subject, found.stacks)
    if not found.stacks:
        raise InputError(
            f"{subject.label}: expected mixers that all get tokens of one shape, got several"
        )
    return found


def _run_stacks(calls: Sequence[Call], stacks: dict[str, Depths]) -> None:
    """Run the input of the first mixer through all mixers, in float64."""
    layers = [_float64(call.module) for call in calls]
    mask = calls[0].key_padding_mask
    for name, step in _STEPS.items():
        x = calls[0].x.double()
        depths = stacks.setdefault(name, Depths())
        depths.add(0, x, mask)
        for depth, layer in enumerate(layers, start=1):
            with undisturbed(layer):
                x = step(layer, x, mask)
            depths.add(depth, x, mask)


def _float64(module: Any) -> Any:
    """Return a float64 copy.

    In lower precision, rounding would hide the small differences after a collapse.
    """
    return copy.deepcopy(module).double()


def _mixed(layer: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    return layer(x, key_padding_mask=mask)


def _normed(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:])


_STEPS: Mapping[str, Callable[[Any, Tensor, Tensor | None], Tensor]] = {
    ALONE: _mixed,
    NORM: lambda layer, x, mask: _mixed(layer, _normed(x), mask),
    SKIP: lambda layer, x, mask: x + _mixed(layer, _normed(x), mask),
}


def _run_blocks(subject: Subject, stacks: dict[str, Depths]) -> None:
    """Measure the tokens after each block of a model.

    Blocks contain skip connection, norm and MLP.
    """
    try:
        find_layers(subject.model, Block)
    except InputError:
        return
    depths = Depths()
    for calls in trace(subject.model, subject.batches, of=Block):
        if len({call.x.shape for call in calls}) > 1:
            return
        mask = calls[0].key_padding_mask
        depths.add(0, calls[0].x, mask)
        for depth, call in enumerate(calls, start=1):
            depths.add(depth, call.y, mask)
    stacks[WHOLE] = depths


def _check_theorem(calls: Sequence[Call], found: Collapse) -> None:
    """Check theorem 1 on X <- permute(X W).

    The check is skipped if there is padding, or if a layer does not permute C channels.
    """
    layers = [_float64(call.module) for call in calls]
    mask = calls[0].key_padding_mask
    if mask is not None or not all(_is_square(layer) for layer in layers):
        return

    def permute_by(layer: Any) -> Callable[[Tensor], Tensor]:
        return lambda v: layer.permute(v, None)[0]

    with torch.no_grad():
        check = collapse_bound(
            calls[0].x.double(),
            [layer.value.weight.T for layer in layers],
            [permute_by(layer) for layer in layers],
        )
    found.bound = check.bound.mean(1).tolist()
    found.bounded_residual = check.residual.mean(1).tolist()
    found.change = check.change.amax(1).tolist()


def _is_square(layer: Any) -> bool:
    """Check that a layer computes permute(X W) before its output projection."""
    weight = getattr(getattr(layer, "value", None), "weight", None)
    return (
        isinstance(layer, PermutationMixer)
        and not layer.causal
        and weight is not None
        and weight.shape[0] == weight.shape[1]
        and layer.value.bias is None
    )


def collapse(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Compare rank measures over depth with theorem 1's bound.

    The measures are rank residual, effective rank and stable rank.

    Source: CSP, theorem 1; Dong et al. 2021 for softmax attention.
    """
    found = {subject.label: collapse_of(subject, tick) for subject in subjects}
    return Finding(
        summary=tuple(_sentence(label, of) for label, of in found.items()),
        headers=(
            "Model",
            "Layers",
            "Depth",
            "Rank residual",
            "Effective rank",
            "Stable rank",
            "s2/s1",
        ),
        rows=tuple(_rows(found)),
        caption=(
            "Above: the paper's rank residual, the distance of the tokens from equal rows over "
            "their own size, both in the norm of theorem 1; 0 is a collapse. Middle: effective "
            "rank, exp of the entropy of the singular values. From left to right: the mixers one "
            "after the other, with a norm before each, with norm and skip connection, and the "
            "blocks as they are, MLP included. Theorem 1 bounds the residual of the bare "
            "permutations from above, so it cannot rule a collapse out. A residual near 1 does "
            "not mean many dimensions, only "
            "that tokens differ."
        ),
        data={"models": {label: _numbers(of) for label, of in found.items()}},
        figure=_figure(found),
    )


def _numbers(of: Collapse) -> dict[str, object]:
    return {
        "stacks": {name: depths.means() for name, depths in of.stacks.items()},
        "theorem_1": None
        if of.bound is None
        else {"bound": of.bound, "residual": of.bounded_residual, "change": of.change},
    }


def _rows(found: Mapping[str, Collapse]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for label, of in found.items():
        for name, depths in of.stacks.items():
            means = depths.means()
            for depth in range(len(means["residual"])):
                residual, effective, stable, second = (of[depth] for of in means.values())
                ranks = (f"{residual:.3g}", f"{effective:.1f}", f"{stable:.2f}", f"{second:.3f}")
                rows.append((label, name, str(depth), *ranks))
    return rows


def _sentence(label: str, of: Collapse) -> str:
    name = NORM if NORM in of.stacks else WHOLE
    means = of.stacks[name].means()
    depth = len(means["residual"]) - 1
    sentence = (
        f"{label}: {name}, after {depth} layers a rank residual of {means['residual'][-1]:.2f}, an "
        f"effective rank of {means['effective'][-1]:.1f}, a stable rank of "
        f"{means['stable'][-1]:.1f} and s2/s1 of {means['second'][-1]:.2f}"
    )
    if of.bound is not None and of.bounded_residual is not None:
        ratio = np.log10(of.bound[-1] / max(of.bounded_residual[-1], 1e-300))
        sentence += f"; theorem 1's bound is {ratio:.0f} orders of magnitude above its residual"
    return f"{sentence}."


def _figure(found: Mapping[str, Collapse]) -> Figure:
    names = [n for n in (*_STEPS, WHOLE) if any(n in of.stacks for of in found.values())]
    bounded = {label: of for label, of in found.items() if of.bound is not None}
    heights = (1.0, 1.0, 0.9) if bounded else (1.0, 1.0)
    figure = new_figure(2.7 * sum(heights) + 0.5)
    grid = figure.add_gridspec(len(heights), len(names), height_ratios=heights)
    above = [figure.add_subplot(grid[0, column]) for column in range(len(names))]
    below = [figure.add_subplot(grid[1, column]) for column in range(len(names))]
    for column, name in enumerate(names):
        _lines(above[column], found, name, "residual")
        _lines(below[column], found, name, "effective")
        tidy(above[column], title=name)
        tidy(below[column], x="depth, layers")
        above[column].set_ylim(-0.05, 1.15)
        below[column].set_yscale("log")
    low = min(place.dataLim.ymin for place in below)
    high = max(place.dataLim.ymax for place in below)
    for place in below:
        place.set_ylim(0.85 * low, 1.2 * high)
    for place in (*above, *below):
        place.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, min_n_ticks=1))
    above[0].set_ylabel("rank residual\n(share of the size)", fontsize=10)
    below[0].set_ylabel("effective rank\n(dimensions)", fontsize=10)
    if bounded:
        _bounds(figure.add_subplot(grid[2, :]), found)
    handles, labels = above[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=7, frameon=False, fontsize=10)
    return figure


def _bounds(axes: Axes, found: Mapping[str, Collapse]) -> None:
    """Draw the residual of X <- permute(X W) solid, its bound dashed."""
    for number, (label, of) in enumerate(found.items()):
        if of.bound is not None and of.bounded_residual is not None:
            depths = range(len(of.bound))
            style = line_style(number)
            axes.semilogy(depths, of.bounded_residual, label=label, **style)
            axes.semilogy(depths, of.bound, **(style | {"linestyle": "--", "marker": ""}))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    tidy(
        axes,
        title="theorem 1 on the permutations alone: residual (solid) and bound (dashed)",
        x="depth, layers",
        y="(1, infinity)-norm",
    )


def _lines(axes: Axes, found: Mapping[str, Collapse], name: str, measure: str) -> None:
    for number, (label, of) in enumerate(found.items()):
        if name in of.stacks:
            values = of.stacks[name].means()[measure]
            axes.plot(range(len(values)), values, label=label, **line_style(number))
