"""Sort matrices of sparse Sinkhorn attention over iterations and temperature."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.analysis.drawing import (
    COLOURS,
    GREY,
    chosen_layers,
    from_zero,
    legend,
    line_style,
    new_figure,
    picture,
    tidy,
)
from rifflemix.lab.analysis.finding import (
    Finding,
    Subject,
    SweepPoint,
    Tick,
    of_those_that_have,
    progress,
    silent,
)
from rifflemix.lab.analysis.kinds.measures import entropy
from rifflemix.lab.analysis.trace import Call, trace, undisturbed
from rifflemix.mixers.sinkhorn import Sinkhorn

SETTINGS = {
    "mixer_options.temperature": "temperature",
    "mixer_options.num_iterations": "iterations",
}
_MOST_LINES = 6


def sweep_points(subjects: Sequence[Subject]) -> list[SweepPoint]:
    """Return the points of a sweep over temperature or iterations.

    The list is empty for other subjects.
    """
    points = [subject.sweep_point for subject in subjects if subject.sweep_point is not None]
    return points if swept_settings(points) else []


def swept_settings(points: Sequence[SweepPoint]) -> list[str]:
    """Return the settings in `SETTINGS` with several values."""
    return [s for s in SETTINGS if len({t.settings.get(s) for t in points}) > 1]


def curves(points: Sequence[SweepPoint], setting: str) -> dict[str, list[SweepPoint]]:
    """Group points by all other settings, sorted by the value of `setting`."""
    lines: dict[str, list[SweepPoint]] = {}
    for point in sorted(points, key=lambda point: float(point.settings[setting])):
        others = {name: value for name, value in point.settings.items() if name != setting}
        words = ", ".join(f"{_short(name)} {value}" for name, value in others.items())
        lines.setdefault(words, []).append(point)
    return lines


def means(points: Sequence[SweepPoint], setting: str) -> dict[float, float]:
    """Return setting value -> mean score over all other settings."""
    values = sorted({float(point.settings[setting]) for point in points})
    return {
        value: float(np.mean([t.mean for t in points if float(t.settings[setting]) == value]))
        for value in values
    }


def quality_sentences(points: Sequence[SweepPoint]) -> list[str]:
    """Describe the score at each value, one sentence per setting."""
    found = []
    for setting in swept_settings(points):
        scores = ", ".join(f"{m:.4g} at {v:g}" for v, m in means(points, setting).items())
        what = f"{points[0].split} {points[0].metric}"
        others = " (mean over the others)" if len(points[0].settings) > 1 else ""
        found.append(f"the sweep reached, {what}, by {SETTINGS[setting]}{others}: {scores}.")
    return found


def quality_rows(points: Sequence[SweepPoint]) -> list[tuple[str, ...]]:
    """Return the points as rows of the `sinkhorn` table."""
    return [
        (
            ", ".join(f"{_short(k)}={v}" for k, v in point.settings.items()),
            f"{point.split} {point.metric}",
            f"{point.mean:.4g}" + ("" if point.std is None else f" ± {point.std:.2g}"),
            "-",
            "-",
        )
        for point in points
    ]


def quality_data(points: Sequence[SweepPoint]) -> list[dict[str, Any]]:
    """Return the points as JSON values."""
    return [{**vars(point), "settings": dict(point.settings)} for point in points]


def draw_quality(axes: Axes, points: Sequence[SweepPoint], setting: str) -> None:
    """Draw the score against a setting.

    There is one line per combination of other settings. Many lines are gray, with the mean of all
    lines in color.
    """
    lines = curves(points, setting)
    few = len(lines) <= _MOST_LINES
    for number, (words, line) in enumerate(lines.items()):
        style = line_style(number) if few else {"color": GREY, "linewidth": 1.0}
        axes.errorbar(
            [float(point.settings[setting]) for point in line],
            [point.mean for point in line],
            yerr=[point.std or 0.0 for point in line] if few and line[0].std is not None else None,
            label=words if few and words else None,
            capsize=3,
            **style,
        )
    if not few:
        mean = means(points, setting)
        axes.plot(
            list(mean), list(mean.values()), "o-", color=COLOURS[0], label="mean of all settings"
        )
    tidy(
        axes,
        title="scores of the runs of the sweep",
        x=SETTINGS[setting],
        y=f"{points[0].split} {points[0].metric}",
    )
    values = list(means(points, setting))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    if not few or any(lines):
        legend(axes)


def _short(name: str) -> str:
    return SETTINGS.get(name, name.rpartition(".")[2])


ITERATIONS = (0, 1, 2, 5, 10, 20)
TEMPERATURES = (0.25, 0.5, 0.75, 1.0, 2.0)


@dataclass
class Sorting:
    """Sort matrices of all layers of a model, at several settings.

    Attributes:
        temperature, iterations: settings of the model.
        error: iterations -> mean distance of row and column sums from 1, at the model's
            temperature.
        softness: temperature -> entropy of a row divided by its maximum, at the model's iterations.
        matrices: (iterations, n, n) of the first head, layer and sample.
    """

    temperature: float
    iterations: int
    error: dict[int, float]
    softness: dict[float, float]
    matrices: NDArray[np.float64]


def sorting_of(subject: Subject, tick: Tick = silent) -> Sorting:
    """Compute the sort matrices of every layer at other settings, without training.

    Raises:
        InputError: no layer balances sort matrices over at least two blocks.
    """
    errors: dict[int, list[float]] = {}
    softness: dict[float, list[float]] = {}
    own: Any = None
    first: list[Tensor] = []
    for calls in progress(subject, trace(subject.model, subject.batches), tick):
        for call in calls:
            if not _balances(call):
                continue
            own = own or call.module.sorter.options
            for count in ITERATIONS:
                matrix = sort_matrix(call, num_iterations=count)
                errors.setdefault(count, []).append(_error(matrix))
                if len(first) < len(ITERATIONS):
                    first.append(matrix[0, 0])
            for temperature in TEMPERATURES:
                matrix = sort_matrix(call, temperature=temperature)
                softness.setdefault(temperature, []).append(_softness(matrix))
        if own is None:
            break
    if own is None:
        raise InputError(
            f"{subject.label}: expected mixer sinkhorn in both directions, with at least two "
            "blocks and without padding, top_k or SortCut; got none"
        )
    return Sorting(
        float(own.temperature),
        int(own.num_iterations),
        {count: float(np.mean(values)) for count, values in errors.items()},
        {temperature: float(np.mean(values)) for temperature, values in softness.items()},
        torch.stack(first).double().cpu().numpy(),
    )


def _balances(call: Call) -> bool:
    mixer = call.module
    if not isinstance(mixer, Sinkhorn) or mixer.causal or call.key_padding_mask is not None:
        return False
    blocks, rest = divmod(call.x.shape[1], mixer.block_size)
    return not (mixer.options.top_k or mixer.options.sortcut or rest) and blocks > 1


def sort_matrix(call: Call, **settings: Any) -> Tensor:
    """Return a layer's sort matrix (B, H, n, n) at other settings.

    The settings are fields of `SinkhornOptions`. There is no noise.
    """
    seen: list[Tensor] = []
    # float64, because exponentials of trained scores are large before the first iteration.
    mixer = copy.deepcopy(call.module).double()
    mixer.sorter.options = replace(mixer.sorter.options, gumbel="never", **settings)
    mixer.sorter.register_forward_hook(lambda module, args, output: seen.append(output))
    with undisturbed(mixer):
        mixer(call.x.double())
    return seen[0]


def _error(matrix: Tensor) -> float:
    """Return the mean distance of row and column sums from 1."""
    wide = matrix.double()
    return float(((wide.sum(-1) - 1).abs().mean() + (wide.sum(-2) - 1).abs().mean()) / 2)


def _softness(matrix: Tensor) -> float:
    """Return the entropy of a row divided by its maximum.

    0 is a permutation, 1 is equal shares.
    """
    wide = matrix.double()
    shares = wide / wide.sum(-1, keepdim=True).clamp_min(1e-300)
    return float(entropy(shares).mean()) / math.log(wide.shape[-1])


def sinkhorn(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Show how iterations balance the sort matrices and how temperature softens them.

    For a sweep over these settings, the finding also contains the results of the runs. Then the
    models may have no such matrices.

    Source: Tay et al. 2020 (Sparse Sinkhorn Attention), Figures 3 and 4.
    """
    points = sweep_points(subjects)
    found: dict[str, Sorting] = {}
    try:
        found = of_those_that_have(subjects, lambda subject: sorting_of(subject, tick))
    except InputError:
        if not points:
            raise
    return Finding(
        summary=(
            *quality_sentences(points),
            *(_sentence(label, of) for label, of in found.items()),
        ),
        headers=("Model", "Setting", "Value", "Sums from 1", "Softness"),
        rows=(
            *quality_rows(points),
            *(row for label, of in found.items() for row in _rows(label, of)),
        ),
        caption=" ".join(
            ([_MATRICES] if found else [])
            + ([_QUALITY.format(n=points[0].seeds)] if points else [])
        ),
        data={
            "models": {
                label: {
                    "temperature": of.temperature,
                    "iterations": of.iterations,
                    "sums_from_1": {str(n): e for n, e in of.error.items()},
                    "softness": {str(t): s for t, s in of.softness.items()},
                }
                for label, of in found.items()
            },
            "sweep": quality_data(points),
        },
        arrays={label: of.matrices for label, of in found.items()},
        figure=_figure(found, points),
    )


_MATRICES = (
    "Above: the sort matrix of the first head of the first layer after a number of Sinkhorn "
    "iterations; rows are destinations, columns sources, bright is more. Below, left: how "
    "far row and column sums are from 1, from one iteration on. Right: softness, the "
    "entropy of a row relative to equal shares, 0 for a permutation; the model's own "
    "settings are marked. Only these settings change, the weights stay; no noise."
)
_QUALITY = (
    "At the bottom: what training with each setting reached; seeds: {n}, bars are one standard "
    "deviation over them."
)


def _rows(label: str, of: Sorting) -> list[tuple[str, ...]]:
    return [
        *((label, "iterations", str(n), f"{e:.2g}", "-") for n, e in of.error.items()),
        *((label, "temperature", f"{t:g}", "-", f"{s:.3f}") for t, s in of.softness.items()),
    ]


def _sentence(label: str, of: Sorting) -> str:
    low, high = TEMPERATURES[0], TEMPERATURES[-1]
    return (
        f"{label}: sums of rows and columns lie {of.error[0]:.2g} from 1 without an iteration, "
        f"{of.error[5]:.2g} after 5 and {of.error[20]:.2g} after 20; softness goes from "
        f"{of.softness[low]:.2f} at temperature {low:g} to {of.softness[high]:.2f} at {high:g}."
    )


_MOST_SHOWN = 4


def _figure(found: dict[str, Sorting], points: Sequence[SweepPoint]) -> Figure:
    """Draw matrices of a few models, two curves, and sweep results."""
    shown = chosen_layers(list(found), _MOST_SHOWN)
    heights = [1.0] * len(shown) + [1.8] * bool(found) + [1.8] * bool(points)
    figure = new_figure(1.9 * sum(heights))
    grid = figure.add_gridspec(len(heights), 6, height_ratios=heights)
    for row, label in enumerate(shown):
        for column, (count, matrix) in enumerate(
            zip(ITERATIONS, found[label].matrices, strict=True)
        ):
            axes = figure.add_subplot(grid[row, column])
            picture(axes, matrix, title=f"{count} iteration{'' if count == 1 else 's'}")
            if column == 0:
                words = label.replace(", ", ",\n")
                axes.set_ylabel(f"{words}\ndestination", fontsize=8)
            axes.set_xlabel("source block", fontsize=8)
    if found:
        row = len(shown)
        _draw_curves(
            figure.add_subplot(grid[row, :3]), figure.add_subplot(grid[row, 3:]), found, shown
        )
    if points:
        places = (grid[-1, :3], grid[-1, 3:])
        settings = swept_settings(points)
        for place, setting in zip(
            places if len(settings) > 1 else (grid[-1, :],), settings, strict=True
        ):
            draw_quality(figure.add_subplot(place), points, setting)
    return figure


def _draw_curves(left: Axes, right: Axes, found: dict[str, Sorting], shown: Sequence[str]) -> None:
    """Draw balance against iterations and softness against temperature; other models are gray."""
    for label, of in found.items():
        colour = COLOURS[shown.index(label)] if label in shown else GREY
        over = 3 if label in shown else 2
        style: dict[str, Any] = {"color": colour, "label": label, "zorder": over}
        balanced = {count: error for count, error in of.error.items() if count}
        left.plot(list(balanced), list(balanced.values()), "o-", **style)
        right.plot(list(of.softness), list(of.softness.values()), "o-", **style)
        left.axvline(of.iterations, color=colour, linestyle=":", linewidth=1)
        right.axvline(of.temperature, color=colour, linestyle=":", linewidth=1)
    tidy(left, title="balance (dotted: as trained)", x="iterations", y="mean |sum - 1|")
    tidy(right, title="softness (dotted: as trained)", x="temperature", y="share of most entropy")
    left.set_xticks([count for count in ITERATIONS if count])
    right.set_xticks(TEMPERATURES, [f"{value:g}" for value in TEMPERATURES])
    from_zero(left)
    right.set_ylim(0.0, 1.05)
    if len(shown) > 1:
        handles, names = right.get_legend_handles_labels()
        of_shown = [n for n, name in enumerate(names) if name in shown]
        right.legend(
            [handles[n] for n in of_shown], [names[n] for n in of_shown], fontsize=9, frameon=False
        )
