"""The records of results.json of a sweep, its table and its plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rifflemix.json_values import ABSENT
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.report.page import figure_png
from rifflemix.lab.report.units import MISSING, format_count, format_duration
from rifflemix.lab.runs.environment import Environment
from rifflemix.lab.runs.status import Point, Protocol, Summary
from rifflemix.lab.train.run_folder import Metrics
from rifflemix.text import bullet_lines, markdown_text, plot_text, table_lines


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A finished run of a sweep.

    Attributes:
        settings, seed, folder: point and seed of the run, and its folder.
        steps, best_step: updates, and the step of the chosen weights.
        parameters, steps_per_second, wall_seconds: size, speed and time.
        validation, test: metrics of the chosen weights.
        validation_curve: every evaluation.
    """

    settings: Point
    seed: int
    folder: str
    steps: int
    best_step: int | None
    parameters: int
    steps_per_second: float | None
    wall_seconds: float
    validation: Metrics
    test: Metrics | None
    validation_curve: list[Metrics]


@dataclass(frozen=True, kw_only=True)
class FailedSweepRun:
    """A run of a sweep that diverged."""

    settings: Point
    seed: int
    folder: str
    error: str
    wall_seconds: float


@dataclass(frozen=True, kw_only=True)
class PointSummary:
    """A point of a sweep over its seeds.

    Attributes:
        settings: the point.
        test, validation: the recipe's metric in its unit; None without a finished run.
        diverged: number of runs that diverged.
        parameters: trainable parameters; None without a finished run.
        wall_seconds: time of all runs.
    """

    settings: Point
    test: Summary | None
    validation: Summary | None
    diverged: int
    parameters: int | None
    wall_seconds: float

    def score(self, split: str) -> Summary | None:
        """Return the metric on the test or the validation split."""
        return self.test if split == "test" else self.validation


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """Content of results.json of a sweep.

    Attributes:
        status: "complete", or "partial" after a stop.
        runs_done, runs_planned: number of runs.
        command, environment: of the newest run.
        config: settings as in config.json.
        recipe, metric, unit: the recipe, and its metric.
        steps, steps_of_the_paper: updates of each run, and of the paper's run.
        protocol: selection of weights.
        wall_seconds: time of all runs.
        points, runs, failed_runs: summaries, finished runs, and runs that diverged.
        sha256: checksum of the other entries.
    """

    format: str
    status: str
    runs_done: int
    runs_planned: int
    command: str
    config: dict[str, Any]
    recipe: Recipe
    metric: str
    unit: str
    steps: int
    steps_of_the_paper: int
    protocol: Protocol
    environment: Environment
    wall_seconds: float
    points: list[PointSummary]
    runs: list[SweepRun]
    failed_runs: list[FailedSweepRun]
    sha256: str | None = field(default=None, metadata=ABSENT)

    @property
    def metric_words(self) -> str:
        """Return the metric with its unit, such as "accuracy, %"."""
        words = self.metric.replace("_", " ")
        return f"{words}, %" if self.unit == "%" else words


def sweep_headers(results: SweepResults) -> list[str]:
    """Return the column titles."""
    metric = results.metric_words
    return [
        *results.config["grid"],
        "Seeds",
        f"Test {metric}",
        f"Validation {metric}",
        "Parameters",
        "Time",
    ]


def sweep_cells(results: SweepResults) -> list[list[str]]:
    """Return one row of texts per point."""
    return [_cells(point) for point in results.points]


def sweep_notes(results: SweepResults) -> list[str]:
    """Describe the runs, and warn against choosing a setting by the test split."""
    recipe, config = results.recipe, results.config
    seeds = len(config["seeds"])
    spread = "Mean ± sample standard deviation" if seeds > 1 else "One seed: the spread is unknown"
    steps, planned = results.steps, results.steps_of_the_paper
    return [
        f"{recipe.name} ({recipe.paper}, {recipe.table}): {format_count(steps)} of "
        f"{format_count(planned)} steps, widths times {config['width']:g}"
        f"{_batch(results)}.",
        f"{spread}. Every value had the same budget and seeds; a run's weights are those that "
        "were best on the validation split.",
        "Nothing was chosen here. Whoever takes a value from this table should look at the "
        "validation column; a test score of a value that was chosen by it is too good.",
        *(
            f"{point_words(run.settings)}, seed {run.seed}: {run.error}"
            for run in results.failed_runs
        ),
    ]


def _batch(results: SweepResults) -> str:
    """Return a note if the batch size differs from the recipe and is not swept."""
    planned = results.recipe.train.batch_size
    batch = results.config["train"].get("batch_size", planned)
    return "" if batch == planned else f", batches of {batch:,} for the recipe's {planned:,}"


def sweep_markdown(results: SweepResults) -> str:
    """Return the content of table.md."""
    headers = sweep_headers(results)
    lines = [f"# Sweep of {markdown_text(results.recipe.name)}", ""]
    if results.status != "complete":
        lines += [f"Partial: {results.runs_done} of {results.runs_planned} runs.", ""]
    lines += table_lines(headers, sweep_cells(results), range(len(headers)))
    lines += ["", *bullet_lines(sweep_notes(results)), "", "![curve](plot.png)", ""]
    return "\n".join(lines)


def point_words(settings: Point) -> str:
    """Return settings as text, such as "lr=0.1, dim=8"."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _cells(point: PointSummary) -> list[str]:
    parameters = point.parameters
    finished = 0 if point.test is None else point.test.n
    return [
        *map(str, point.settings.values()),
        f"{finished}, {point.diverged} diverged" if point.diverged else str(finished),
        _score(point.test),
        _score(point.validation),
        MISSING if parameters is None else format_count(parameters),
        format_duration(point.wall_seconds),
    ]


def _score(summary: Summary | None) -> str:
    if summary is None:
        return MISSING
    spread = "" if summary.std is None else f" ± {summary.std:.3g}"
    return f"{summary.mean:.4g}{spread}"


# Palette of Okabe and Ito, safe for color blindness.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
_VALIDATION = "#999999"
_LOG_FROM_RATIO = 10.0
_DPI = 150


def sweep_plot(results: SweepResults) -> bytes:
    """Plot the test split as a PNG, with one line for each value of the other settings.

    A sweep of one setting also shows the validation split in gray. Bars are one standard deviation
    over seeds.
    """
    grid: Mapping[str, Sequence[Any]] = results.config["grid"]
    # The axis shows the setting with most values. Numbers come before other settings.
    axis = max(grid, key=lambda name: (_is_numeric(grid[name]), len(grid[name])))
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(8.0, 5.0), dpi=_DPI, layout="constrained")
        axes = figure.subplots()
        if len(grid) == 1:
            _line(axes, results.points, axis, grid[axis], "validation", _VALIDATION, "validation")
        for index, (label, points) in enumerate(_lines(results.points, axis).items()):
            colour = _COLOURS[index % len(_COLOURS)]
            _line(axes, points, axis, grid[axis], "test", colour, label or "test")
        _set_axes(axes, results, axis, grid[axis])
        return figure_png(figure)


def _lines(points: Sequence[PointSummary], axis: str) -> dict[str, list[PointSummary]]:
    """Return the points of each combination of the other settings."""
    lines: dict[str, list[PointSummary]] = {}
    for point in points:
        others = {name: value for name, value in point.settings.items() if name != axis}
        lines.setdefault(point_words(others), []).append(point)
    return lines


def _line(
    axes: Axes,
    points: Sequence[PointSummary],
    axis: str,
    values: Sequence[Any],
    split: str,
    colour: str,
    label: str,
) -> None:
    known = [(p.settings, score) for p in points if (score := p.score(split)) is not None]
    places = [_place(settings[axis], values) for settings, _ in known]
    order = sorted(range(len(known)), key=places.__getitem__)
    axes.errorbar(
        [places[i] for i in order],
        [known[i][1].mean for i in order],
        yerr=[known[i][1].std or 0.0 for i in order],
        color=colour,
        marker="o",
        markersize=4,
        capsize=3,
        linewidth=1.4,
        label=label,
    )


def _set_axes(axes: Axes, results: SweepResults, axis: str, values: Sequence[Any]) -> None:
    axes.set_title(f"Sweep of {results.recipe.name}", loc="left", fontsize=11)
    axes.set_xlabel(axis)
    axes.set_ylabel(results.metric_words)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if _is_numeric(values) and min(values) > 0 and max(values) / min(values) >= _LOG_FROM_RATIO:
        axes.set_xscale("log")
    axes.set_xticks([_place(value, values) for value in values], list(map(plot_text, values)))
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9)


def _place(value: Any, values: Sequence[Any]) -> float:
    """Return the position on the axis: a number itself, or the index of another value."""
    return float(value) if _is_numeric(values) else float(list(values).index(value))


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
