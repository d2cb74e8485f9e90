"""The records and the table of results.json of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rifflemix.json_values import ABSENT
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.report.units import MISSING, format_count, format_duration
from rifflemix.lab.runs.environment import Environment
from rifflemix.lab.runs.status import Point, Protocol, Summary
from rifflemix.lab.train.run_folder import Metrics
from rifflemix.text import bullet_lines, markdown_text, table_lines


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
        command, environment: command and environment of the newest run.
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
