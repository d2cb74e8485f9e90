"""Coding rates of token statistics (TSSA), and the gap of the variational bound."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.analysis.drawing import COLOURS, from_zero, layer_ticks, legend, new_figure, tidy
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
from rifflemix.lab.analysis.trace import Call, trace, undisturbed
from rifflemix.mixers.tssa import TSSA
from rifflemix.ops.statistics import compression_rate, variational_compression_rate


@dataclass
class LayerRates:
    """Coding rates of one layer in nats, for every sample.

    Attributes:
        name: name of the layer.
        rate: R^c of the input tokens under the layer's memberships; needs no basis.
        rate_after: R^c of input plus output, under the same memberships.
        bound: variational bound of the input in the layer's own bases.
        bound_after: variational bound of input plus output.
        span_rate: log-det rate of the input within the span of each head.
        span_bound: variational bound of the input in the orthonormal bases nearest to the layer's
            own bases.
    """

    name: str
    rate: list[float] = field(default_factory=list)
    rate_after: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    bound_after: list[float] = field(default_factory=list)
    span_rate: list[float] = field(default_factory=list)
    span_bound: list[float] = field(default_factory=list)

    @property
    def gap(self) -> float:
        """Mean difference between bound and log-det rate; at least 0."""
        return float(np.mean(np.subtract(self.span_bound, self.span_rate)))

    @property
    def least_gap(self) -> float:
        """Smallest difference between bound and log-det rate over the samples."""
        return float(np.min(np.subtract(self.span_bound, self.span_rate)))


def layer_rates(subject: Subject, tick: Tick = silent) -> list[LayerRates]:
    """Compute the rates of every TSSA layer, in float64.

    Raises:
        InputError: the model has no TSSA layer.
    """
    found: dict[str, LayerRates] = {}
    for calls in progress(subject, trace(subject.model, subject.batches), tick):
        for call in calls:
            if isinstance(call.module, TSSA):
                layer = found.setdefault(call.name, LayerRates(call.name))
                _add(layer, call)
        if not found:
            break
    if not found:
        raise InputError(f"{subject.label}: expected a model with mixer tssa, got none")
    return list(found.values())


def _add(layer: LayerRates, call: Call) -> None:
    mask = call.key_padding_mask
    x, y = call.x.double(), call.y.double()
    if mask is not None:
        x = x.masked_fill(mask.unsqueeze(-1), 0.0)
    with undisturbed(call.module):
        membership = call.module.membership(call.x, key_padding_mask=mask).double()
    weight = call.module.in_proj.weight.detach().double()
    bases = weight.unflatten(0, (call.module.num_heads, -1))
    with torch.no_grad():
        layer.rate += compression_rate(x, membership).tolist()
        layer.rate_after += compression_rate(x + y, membership).tolist()
        layer.bound += bound_in(bases, x, membership).tolist()
        layer.bound_after += bound_in(bases, x + y, membership).tolist()
        spans = nearest_orthonormal(bases)
        layer.span_bound += bound_in(spans, x, membership).tolist()
        layer.span_rate += rate_in(spans, x, membership).tolist()


def nearest_orthonormal(bases: Tensor) -> Tensor:
    """Return the nearest orthonormal rows of (H, D, C) with equal span.

    This is the polar factor: it has the smallest Frobenius distance of all orthonormal bases.
    """
    left, _, right = torch.linalg.svd(bases, full_matrices=False)
    return left @ right


def bound_in(bases: Tensor, z: Tensor, membership: Tensor) -> Tensor:
    """Compute the variational bound of tokens in bases: (B,).

    Tokens are (B, N, C) and bases (H, D, C).
    """
    return variational_compression_rate(torch.einsum("bnc,hdc->bhnd", z, bases), membership)


def rate_in(bases: Tensor, z: Tensor, membership: Tensor) -> Tensor:
    """Compute the log-det rate of tokens in the bases' spans: (B,).

    Tokens are (B, N, C) and bases (H, D, C). The rate is
    1/2 sum_h n_h / n log det(I + 1 / n_h U_h^T Z^T diag(Pi[h]) Z U_h). It is the minimum of the
    variational bound, with equality if the U_h are the eigenvectors of the group's second moment.
    """
    inside = torch.einsum("bnc,hdc->hbnd", z, bases)
    share = membership.sum(-1) / membership.sum((1, 2)).unsqueeze(-1).clamp_min(1e-12)
    heads = [
        share[:, head] * compression_rate(tokens.contiguous(), membership[:, head : head + 1])
        for head, tokens in enumerate(inside)
    ]
    return torch.stack(heads).sum(0)


def rate(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Compare R^c and its variational bound by layer.

    Each is measured before and after the layer.

    Source: Wu et al. 2024 (ToST), equations (1), (4) and Figure 4a.
    """
    found = of_those_that_have(subjects, lambda subject: layer_rates(subject, tick))
    return layer_finding(
        found, _COLUMNS, sentence=_sentence, caption=_CAPTION, figure=_figure(found)
    )


_COLUMNS = (
    Column("R^c before, nats", "rate", ".4f"),
    Column("R^c after, nats", "rate_after", ".4f"),
    Column("Bound before, nats", "bound", ".4f"),
    Column("Bound after, nats", "bound_after", ".4f"),
    Column("Log-det rate in the spans, nats", "span_rate", ".4f"),
    Column("", "span_bound"),
    Column("Gap, nats", "gap", ".4f"),
    Column("", "least_gap"),
)
_CAPTION = (
    "Left: the variational bound that the operator lowers, in the layer's own bases, before "
    "(solid) and after it (dashed; input plus output under the same memberships). Middle: R^c "
    "(it needs no basis). Right: the log-det rate in each head's span and above it the bound in "
    "the nearest orthonormal bases: the gap between them is 0 if the bases are the groups' "
    "principal directions. Means over samples."
)


def _sentence(label: str, layers: Sequence[LayerRates]) -> str:
    lowered = sum(np.mean(layer.bound_after) < np.mean(layer.bound) for layer in layers)
    bounds = [float(np.mean(layer.bound)) for layer in layers]
    falls = sum(after < before for before, after in itertools.pairwise(bounds))
    gaps = [layer.gap for layer in layers]
    return (
        f"{label}: {lowered} of {len(layers)} operators lower their own bound; from layer to layer "
        f"it falls {falls} of {len(layers) - 1} times, from {bounds[0]:.3f} to {bounds[-1]:.3f} "
        f"nats; the gap to the log-det rate is {min(gaps):.3f} to {max(gaps):.3f} nats."
    )


def _figure(found: dict[str, list[LayerRates]]) -> Figure:
    figure = new_figure(3.6)
    panels = (
        ("variational bound", "bound", "before", "bound_after", "after"),
        ("$R^c$, without a basis", "rate", "before", "rate_after", "after"),
        ("in the heads' spans", "span_bound", "bound", "span_rate", "log-det rate"),
    )
    for axes, (title, *lines) in zip(figure.subplots(1, 3), panels, strict=True):
        for number, (label, layers) in enumerate(found.items()):
            for style, what, name in zip(("-", "--"), lines[::2], lines[1::2], strict=True):
                axes.plot(
                    range(1, len(layers) + 1),
                    [np.mean(getattr(layer, what)) for layer in layers],
                    style,
                    color=COLOURS[number % len(COLOURS)],
                    marker="o",
                    markersize=4,
                    label=f"{label}, {name}",
                )
        tidy(axes, title=title, x="layer", y="rate, nats")
        from_zero(axes)
        layer_ticks(axes, max(map(len, found.values())))
        legend(axes)
    return figure
