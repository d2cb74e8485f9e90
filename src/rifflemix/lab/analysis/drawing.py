"""Shared style of all figures (1200 pixels wide, few colors), and samples that are images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.analysis.finding import Subject, as_array
from rifflemix.lab.tasks import card_of
from rifflemix.lab.tasks.text.next_token import NextTokenTask

T = TypeVar("T")

# Okabe and Ito's palette without its yellow; safe for the common kinds of color blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#bdbdbd"
MAP = "cividis"  # readable with and without color blindness
DPI = 120
_WIDTH = 10.0  # inches


def new_figure(height: float) -> Figure:
    """Create a figure of 1200 pixels by `height` inches."""
    with matplotlib.style.context("default"):
        return Figure(figsize=(_WIDTH, height), dpi=DPI, layout="constrained")


def panels(
    count: int, *, height: float = 2.9, most: int = 4, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Create a figure with `count` panels, at most `most` per row.

    Spare places stay empty.
    """
    columns = min(count, most)
    rows = math.ceil(count / columns)
    figure = new_figure(height * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes[:count]


def tidy(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Set title and axis labels, add a grid, remove the box."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=10)
    axes.set_ylabel(y, fontsize=10)
    axes.tick_params(labelsize=9)
    axes.grid(visible=True, color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def picture(axes: Axes, values: Any, *, title: str = "", **options: Any) -> Any:
    """Draw a matrix or an image pixel by pixel, without ticks."""
    settings: dict[str, Any] = {"cmap": MAP, "interpolation": "nearest", "aspect": "equal"}
    shown = axes.imshow(as_array(values), **(settings | options))
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    return shown


def chosen_layers(layers: Sequence[T], most: int) -> Sequence[T]:
    """Choose at most `most` layers, evenly spaced.

    The first and the last layer are included. A single layer is the middle one.
    """
    if len(layers) <= most:
        return layers
    if most == 1:
        return [layers[len(layers) // 2]]
    places = {round(step * (len(layers) - 1) / (most - 1)) for step in range(most)}
    return [layers[place] for place in sorted(places)]


def line_style(number: int) -> dict[str, Any]:
    """Return color and marker of line `number`; the marker helps without color."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def layer_ticks(axes: Axes, count: int) -> None:
    """Set integer ticks for layers 1 to `count`, with a margin."""
    axes.set_xlim(0.5, count + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def from_zero(axes: Axes) -> None:
    """Set the y-axis to start at 0, with room for markers."""
    high = axes.dataLim.ymax if axes.dataLim.ymax > 0 else 1.0
    axes.set_ylim(-0.03 * high, 1.07 * high)


def legend(axes: Axes) -> None:
    """Add a legend in the corner with the most space."""
    axes.legend(fontsize=9, frameon=False)


def inputs_of(batch: Any) -> Tensor:
    """Return the first tensor of a batch.

    The batch has any form that `trace` accepts.
    """
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, tuple | list):
        return inputs_of(batch[0])
    return inputs_of(batch["inputs"] if "inputs" in batch else next(iter(batch.values())))


def has_images(subject: Subject) -> bool:
    """Check whether the samples of a subject are images.

    The inputs are whole images or tokens.
    """
    inputs = inputs_of(subject.batches[0])
    if inputs.dim() == 4:
        return True
    return subject.task is not None and bool(card_of(subject.task).is_image)


def check_images(subject: Subject, what: str) -> None:
    """Raise InputError if the samples are not images."""
    if not has_images(subject):
        got = "other data" if subject.task is None else f"task {subject.task.name}"
        raise InputError(f"{subject.label}: expected images for {what}, got {got}")


def image_of(subject: Subject, sample: int) -> NDArray[np.float64]:
    """Return a sample of the first batch, scaled from 0 to 1.

    The shape is (height, width) or (height, width, 3).
    """
    x = inputs_of(subject.batches[0])[sample].detach().cpu().double()
    if x.dim() == 3:  # a whole image, channels first
        shown = x.permute(1, 2, 0) if x.shape[0] == 3 else x.mean(0)
    else:
        tokens = x if x.dim() == 1 else x.mean(-1)
        side = math.isqrt(len(tokens))
        shown = tokens[: side * side].view(side, side)
    low, high = shown.min(), shown.max()
    return ((shown - low) / (high - low).clamp_min(1e-12)).numpy()


def as_grid(values: Tensor) -> Tensor:
    """Reshape (..., N) values of tokens to (..., S, S).

    A leading class token is dropped.

    Raises:
        InputError: N is neither S^2 nor S^2 + 1.
    """
    count = values.shape[-1]
    for spare in (0, 1):
        side = math.isqrt(count - spare)
        if side * side == count - spare and side:
            return values[..., spare:].unflatten(-1, (side, side))
    raise InputError(f"expected the tokens of a square image, got {count} of them")


def text_of(subject: Subject, sample: int, most: int) -> list[str] | None:
    """Return the first characters or ids of a sample of ids.

    Returns None for other inputs.
    """
    x = inputs_of(subject.batches[0])[sample]
    if x.is_floating_point() or x.dim() != 1:
        return None
    ids = x[:most].tolist()
    if subject.task is None or subject.task.options.get("level") != "byte":
        return [str(i) for i in ids]
    zero = 0 if isinstance(subject.task, NextTokenTask) else 1  # other byte tasks use 0 for padding
    return [chr(i - zero) if 32 <= i - zero < 127 else " " for i in ids]
