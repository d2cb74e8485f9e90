"""Plot of a `SwapMeasurement`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from rifflemix.lab.report.figure import figure_png

if TYPE_CHECKING:
    from rifflemix.lab.bench.swap import SwapMeasurement

_HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^v"


def swap_plot(measurement: SwapMeasurement) -> bytes:
    """Plot milliseconds against N as a PNG, one panel per phase.

    The original model is black.
    """
    lengths = sorted({row.length for row in measurement.rows})
    phases = list(dict.fromkeys(row.phase for row in measurement.rows))
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(4.6 * len(phases) + 1.6, 4.0), dpi=120, layout="constrained")
        for panel, phase in zip(
            figure.subplots(1, len(phases), squeeze=False)[0], phases, strict=True
        ):
            for i, mixer in enumerate(measurement.mixers):
                costs = measurement.costs(mixer, phase)
                panel.loglog(
                    lengths,
                    [1e3 * costs[n] for n in lengths],
                    color="#222222" if i == 0 else _HUES[(i - 1) % len(_HUES)],
                    marker=_MARKERS[i // len(_HUES) % len(_MARKERS)],
                    linewidth=2.0 if i == 0 else 1.4,
                    label=mixer,
                )
            panel.set(title=phase, xlabel="tokens N", ylabel="milliseconds")
            panel.xaxis.set_major_locator(FixedLocator(lengths))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            panel.grid(True, which="major", alpha=0.3)
        handles, labels = panel.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False)
        return figure_png(figure)
