"""Plots of test accuracy against length, and of the test score against state size."""

from __future__ import annotations

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from rifflemix.lab.comparison.pages.plot import colours
from rifflemix.lab.comparison.pages.table import all_lengths, scores_by_length
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.report.units import metric_title, metric_value
from rifflemix.text import plot_text

_DPI = 150
_MARKERS = "osD^vP*X<>"


def length_figure(table: Table) -> Figure:
    """Draw test accuracy against length: a line per mixer, a bar for the 95 % interval."""
    figure, axes = _empty(table)
    lengths = all_lengths(table.results)
    axes.set(xlabel="tokens per sequence (training at the first length)", ylabel="test accuracy, %")
    scores, colour = scores_by_length(table.results), colours(table.rows)
    with matplotlib.style.context("default"):
        for at, row in enumerate(table.rows):
            found = scores.get(row.name, [])
            bars = [
                [100 * (one.mean - (one.mean if one.low is None else one.low)) for one in found],
                [100 * ((one.mean if one.high is None else one.high) - one.mean) for one in found],
            ]
            axes.errorbar(
                [one.length for one in found],
                [100 * one.mean for one in found],
                yerr=bars,
                label=plot_text(row.title),
                color=colour[row.name],
                marker=_MARKERS[at % len(_MARKERS)],
                capsize=3,
                linewidth=1.4,
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator([float(length) for length in lengths]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_ylim(-3, 103)
        _legend(axes)
    return figure


def state_figure(table: Table) -> Figure:
    """Draw the test score against the numbers that a stream keeps per sequence."""
    figure, axes = _empty(table)
    metric, colour = table.metric, colours(table.rows)
    axes.set(xlabel="numbers that a stream keeps per sequence, all layers")
    axes.set_ylabel(plot_text(f"test {metric_title(metric)}"))
    with matplotlib.style.context("default"):
        for at, row in enumerate(table.rows):
            if row.test is None or row.state_size is None:
                continue
            std = None if row.test.std is None else metric_value(metric, row.test.std)
            axes.errorbar(
                max(row.state_size, 1),  # the axis is logarithmic
                metric_value(metric, row.test.mean),
                yerr=std,
                label=plot_text(row.title),
                color=colour[row.name],
                marker=_MARKERS[at % len(_MARKERS)],
                linestyle="none",
                markersize=7,
                capsize=3,
            )
        axes.set_xscale("log")
        _legend(axes)
    return figure


def _empty(table: Table) -> tuple[Figure, Axes]:
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(8.0, 4.6), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set_title(plot_text(table.results.task.title), loc="left", fontsize=11)
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
