"""Singular values and ranks of the maps of layers, and of outputs before the projection."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from rifflemix.lab.analysis.drawing import COLOURS, GREY, legend, new_figure, tidy
from rifflemix.lab.analysis.finding import Finding, Subject, Tick, progress, silent
from rifflemix.lab.analysis.kinds.measures import (
    effective_rank,
    second_over_first,
    selection_values,
    singular_values,
    stable_rank,
)
from rifflemix.lab.analysis.maps import matrix_of, permutation_of
from rifflemix.lab.analysis.trace import Call, TorchAttention, trace, undisturbed

_NAMES = ("proj", "out_proj")


def before_projection(call: Call) -> Tensor | None:
    """Return the output of a layer before its output projection W_O.

    The layer runs a second time without W_O. The projection of that result must be the recorded
    output of the layer.

    Args:
        call: a call that `trace` recorded.

    Returns:
        (B, N, C'), zero at padded positions. The output itself if the layer has no module named
        `proj` or `out_proj`. None if the projection of the result is not the output, as in layers
        with further operations after the projection.

    Source: CSP, Figure 3; Sliceformer, Figure 4. Both show matrices before W_O.
    """
    if isinstance(call.module, TorchAttention):
        projections: list[nn.Module] = [call.module.attention.out_proj]
    else:
        projections = _projections(call.module)
    for projection in projections:
        y = _without(call, projection)
        if _reproduces(call, projection, y):
            return y
    return None if projections else _padded_with_zeros(call, call.y)


def _projections(mixer: nn.Module) -> list[nn.Module]:
    """Find submodules with the name of an output projection, the outermost first."""
    found = (getattr(module, name, None) for module in mixer.modules() for name in _NAMES)
    return list(dict.fromkeys(child for child in found if isinstance(child, nn.Module)))


def _without(call: Call, projection: nn.Module) -> Tensor:
    """Run the layer without its output projection."""
    layer = call.module
    if isinstance(layer, TorchAttention):
        layer = _with_identity(layer)
        return _padded_with_zeros(call, _run(layer, call))
    with projection.register_forward_hook(_leave_out):
        return _padded_with_zeros(call, _run(layer, call))


def _with_identity(layer: TorchAttention) -> TorchAttention:
    """Copy torch's attention with an identity as W_O.

    torch reads the weights of W_O and does not call the module.
    """
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        nn.init.eye_(layer.attention.out_proj.weight)
        if layer.attention.out_proj.bias is not None:
            layer.attention.out_proj.bias.zero_()
    return layer


def _leave_out(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Replace the output of a projection by its input."""
    return args[0]


def _run(layer: nn.Module, call: Call) -> Tensor:
    with undisturbed(layer):
        return layer(call.x, key_padding_mask=call.key_padding_mask)


def _reproduces(call: Call, projection: nn.Module, y: Tensor) -> bool:
    """Check that the projection of `y` reproduces the layer's output."""
    expected = _padded_with_zeros(call, call.y)
    if isinstance(projection, nn.Linear) and y.shape[-1] != projection.in_features:
        return False
    with undisturbed(projection):
        projected = _padded_with_zeros(call, projection(y))
    if projected.shape != expected.shape:
        return False
    share = 1e-4 if torch.finfo(expected.dtype).bits > 16 else 2e-2
    distance = (projected - expected).abs().amax()
    return bool(distance <= share * expected.abs().amax().clamp_min(1e-6))


def _padded_with_zeros(call: Call, y: Tensor) -> Tensor:
    mask = call.key_padding_mask
    return y if mask is None else y.masked_fill(mask.unsqueeze(-1), 0.0)


# A matrix needs N / D passes and H N^2 numbers per sample. A permutation needs neither.
MOST_MAP_TOKENS = 512
BEFORE, AFTER, MAP = "before the output projection", "after the output projection", "map"
_COLUMNS = 4


@dataclass
class Spectrum:
    """Singular values of a set of matrices, as means over the matrices.

    Attributes:
        count: number of matrices.
        effective, stable, second: sums of effective rank, stable rank and s2/s1.
        least, most: smallest and largest singular value of all matrices.
        scaled: sum of the singular values divided by the largest of each matrix.
    """

    count: int = 0
    effective: float = 0.0
    stable: float = 0.0
    second: float = 0.0
    least: float = math.inf
    most: float = 0.0
    scaled: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def add(self, values: Tensor) -> None:
        """Add descending singular values (M, R) of M matrices.

        R may differ between calls.
        """
        if not values.numel():
            return
        self.count += len(values)
        self.effective += float(effective_rank(values).sum())
        self.stable += float(stable_rank(values).sum())
        self.second += float(second_over_first(values).sum())
        self.least = min(self.least, float(values[:, -1].min()))
        self.most = max(self.most, float(values[:, 0].max()))
        curve = (values / values[:, :1].clamp_min(1e-300)).sum(0).cpu().numpy()
        longer, shorter = sorted((self.scaled, curve), key=len, reverse=True)
        self.scaled = longer.copy()
        self.scaled[: len(shorter)] += shorter

    @property
    def curve(self) -> NDArray[np.float64]:
        """Mean singular values divided by the largest, descending.

        Short spectra end in zeros.
        """
        return self.scaled / self.count

    def means(self) -> dict[str, float]:
        """Return the three measures, means over the matrices."""
        return {
            "effective_rank": self.effective / self.count,
            "stable_rank": self.stable / self.count,
            "second_over_first": self.second / self.count,
        }


@dataclass
class LayerSpectrum:
    """Spectra of one layer.

    Attributes:
        name: name of the layer in the model.
        before: outputs before the output projection; empty if the projection is not separable.
        after: outputs of the layer.
        maps: maps over tokens, one per head or channel; empty if the layer has none.
        tokens: largest number of tokens of a sample.
    """

    name: str
    before: Spectrum = field(default_factory=Spectrum)
    after: Spectrum = field(default_factory=Spectrum)
    maps: Spectrum = field(default_factory=Spectrum)
    tokens: int = 0

    def named(self) -> dict[str, Spectrum]:
        """Return the spectra that exist, by what they measure."""
        found = {BEFORE: self.before, AFTER: self.after, MAP: self.maps}
        return {what: spectrum for what, spectrum in found.items() if spectrum.count}

    @property
    def shown(self) -> Spectrum:
        """Spectrum before the output projection.

        In layers without one, it is the spectrum of the output.
        """
        return self.before if self.before.count else self.after


def layer_spectra(subject: Subject, tick: Tick = silent) -> list[LayerSpectrum]:
    """Measure every mixer of a subject over all of its batches."""
    found: dict[str, LayerSpectrum] = {}
    for calls in progress(subject, trace(subject.model, subject.batches), tick):
        for call in calls:
            _add(found.setdefault(call.name, LayerSpectrum(call.name)), call)
    return list(found.values())


def _add(layer: LayerSpectrum, call: Call) -> None:
    layer.tokens = max(layer.tokens, call.x.shape[1])
    layer.after.add(singular_values(call.y, call.key_padding_mask))
    before = before_projection(call)
    if before is not None:
        layer.before.add(singular_values(before, call.key_padding_mask))
    for values in _map_values(call):
        layer.maps.add(values)


def _map_values(call: Call) -> list[Tensor]:
    """Compute the singular values of the maps of each sample.

    The shape is (maps, n) for n valid tokens.
    """
    mask, batch, length = call.key_padding_mask, len(call.x), call.x.shape[1]
    valid = [slice(None) if mask is None else ~mask[sample] for sample in range(batch)]
    index = permutation_of(call)
    if index is not None:
        return [selection_values(index[n, valid[n]], length) for n in range(batch)]
    matrix = matrix_of(call) if length <= MOST_MAP_TOKENS else None
    if matrix is None:
        return []
    maps = [matrix[n][:, valid[n]][:, :, valid[n]] for n in range(batch)]
    return [torch.linalg.svdvals(of_sample.double()) for of_sample in maps]


def spectrum(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Measure outputs around the output projection, and maps over tokens.

    Source: CSP, Figure 3; Sliceformer, Figure 4. Both show outputs before the projection.
    """
    found = {subject.label: layer_spectra(subject, tick) for subject in subjects}
    return Finding(
        summary=tuple(_sentence(label, layers) for label, layers in found.items()),
        headers=("Model", "Layer", "Measured", "Effective rank", "Stable rank", "s2/s1"),
        rows=tuple(
            (label, layer.name, what, *_texts(of))
            for label, layers in found.items()
            for layer in layers
            for what, of in layer.named().items()
        ),
        caption=_CAPTION,
        data={"models": {label: [_numbers(layer) for layer in of] for label, of in found.items()}},
        arrays={
            f"{label}/{layer.name}/{what}": of.curve
            for label, layers in found.items()
            for layer in layers
            for what, of in layer.named().items()
        },
        figure=_figure(found),
    )


_CAPTION = (
    "Singular values of each layer's outputs over the largest one, means over samples. Top: "
    f"{BEFORE} W_O, as in the papers. Bottom: {AFTER}, bias included. The first layer is blue, the "
    "last orange, the others grey. A high curve means many dimensions. Effective rank is exp "
    "of the entropy of the singular values. Stable rank is the sum of their squares over the "
    "largest square. s2/s1 is the second over the first. The maps of permutation layers are "
    "measured from the position that each value comes from. Layers without a map over tokens, or "
    f"with matrices of more than {MOST_MAP_TOKENS} tokens, have no map in the table."
)


def _texts(of: Spectrum) -> tuple[str, ...]:
    means = of.means()
    ranks = f"{means['effective_rank']:.1f}", f"{means['stable_rank']:.2f}"
    return (*ranks, f"{means['second_over_first']:.3f}")


def _numbers(layer: LayerSpectrum) -> dict[str, Any]:
    maps = layer.maps
    return {
        "layer": layer.name,
        "tokens": layer.tokens,
        "before_projection": layer.before.means() if layer.before.count else None,
        "after_projection": layer.after.means(),
        "map": {**maps.means(), "smallest": maps.least, "largest": maps.most}
        if maps.count
        else None,
    }


def _sentence(label: str, layers: Sequence[LayerSpectrum]) -> str:
    first, last = layers[0], layers[-1]
    ends = [of.shown.means()["effective_rank"] for of in (first, last)]
    sentence = (
        f"{label}: outputs {BEFORE if last.before.count else AFTER} have effective rank "
        f"{ends[0]:.1f} in the first layer and {ends[1]:.1f} in the last, of "
        f"{len(last.shown.scaled)} possible"
    )
    if last.maps.count:
        rank = last.maps.means()["effective_rank"]
        sentence += f"; the maps of the last layer have effective rank {rank:.1f} of {last.tokens}"
    return f"{sentence}."


def _figure(found: dict[str, list[LayerSpectrum]]) -> Figure:
    """Draw a column per model.

    Outputs before the output projection are on top, outputs after it below.
    """
    columns = min(len(found), _COLUMNS)
    bands = -(-len(found) // columns)
    figure = new_figure(2.8 * 2 * bands + 0.4)
    grid = figure.subplots(2 * bands, columns, squeeze=False, sharey=True)
    for place in grid.flat:
        place.set_visible(False)
    for position, (label, layers) in enumerate(found.items()):
        band, column = divmod(position, columns)
        for row, (what, short) in enumerate(((BEFORE, "before W_O"), (AFTER, "after W_O"))):
            place = grid[2 * band + row, column]
            place.set_visible(True)
            _draw(place, [layer.named().get(what) for layer in layers])
            tidy(place, title=f"{label}, {short}", x="number of the singular value")
            place.set_ylim(1e-8, 1.6)
            if column == 0:
                place.set_ylabel("singular value over the largest", fontsize=10)
    legend(grid[1, 0])
    return figure


def _draw(place: Axes, spectra: Sequence[Spectrum | None]) -> None:
    last = len(spectra) - 1
    for number, of in enumerate(spectra):
        if of is None:
            continue
        ends = number in (0, last)
        colour = (COLOURS[0] if number == 0 else COLOURS[1]) if ends else GREY
        place.semilogy(
            np.arange(1, len(of.scaled) + 1),
            np.maximum(of.curve, 1e-8),
            color=colour,
            linestyle="-" if number == 0 or not ends else "--",
            linewidth=1.8 if ends else 0.9,
            zorder=3 if ends else 2,
            label={last: "last layer", 0: "first layer"}.get(number),
        )
