"""The table of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rifflemix.lab.report.units import MISSING, format_count, format_duration
from rifflemix.text import bullet_lines, markdown_text, table_lines


def sweep_headers(results: Mapping[str, Any]) -> list[str]:
    """Column titles."""
    metric = metric_words(results)
    return [
        *results["config"]["grid"],
        "Seeds",
        f"Test {metric}",
        f"Validation {metric}",
        "Parameters",
        "Time",
    ]


def sweep_cells(results: Mapping[str, Any]) -> list[list[str]]:
    """A row a point, as texts."""
    return [_cells(point) for point in results["points"]]


def sweep_notes(results: Mapping[str, Any]) -> list[str]:
    """What was run, and what the table must not be used for."""
    recipe = results["recipe"]
    seeds = len(results["config"]["seeds"])
    spread = "Mean ± sample standard deviation" if seeds > 1 else "One seed: the spread is unknown"
    steps, planned = results["steps"], results["steps_of_the_paper"]
    return [
        f"{recipe['name']} ({recipe['paper']}, {recipe['table']}): {format_count(steps)} of "
        f"{format_count(planned)} steps, widths times {results['config']['width']:g}"
        f"{_batch(results)}.",
        f"{spread}. Every value had the same budget and seeds; a run's weights are those that "
        "were best on the validation split.",
        "Nothing was chosen here. Whoever takes a value from this table should look at the "
        "validation column; a test score of a value that was chosen by it is too good.",
        *(
            f"{point_words(run['settings'])}, seed {run['seed']}: {run['error']}"
            for run in results["failed_runs"]
        ),
    ]


def _batch(results: Mapping[str, Any]) -> str:
    """The batch size of all runs where it is not the recipe's; one that is swept has a column."""
    planned = results["recipe"]["train"]["batch_size"]
    batch = results["config"]["train"].get("batch_size", planned)
    return "" if batch == planned else f", batches of {batch:,} for the recipe's {planned:,}"


def sweep_markdown(results: Mapping[str, Any]) -> str:
    """The whole of table.md."""
    headers = sweep_headers(results)
    lines = [f"# Sweep of {markdown_text(results['recipe']['name'])}", ""]
    if results["status"] != "complete":
        lines += [f"Partial: {results['runs_done']} of {results['runs_planned']} runs.", ""]
    lines += table_lines(headers, sweep_cells(results), range(len(headers)))
    lines += ["", *bullet_lines(sweep_notes(results)), "", "![curve](plot.png)", ""]
    return "\n".join(lines)


def metric_words(results: Mapping[str, Any]) -> str:
    """The recipe's metric with its unit, such as "accuracy, %"."""
    words = str(results["metric"]).replace("_", " ")
    return f"{words}, %" if results["unit"] == "%" else words


def point_words(settings: Mapping[str, Any]) -> str:
    """Settings as text, such as "lr=0.1, dim=8"."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _cells(point: Mapping[str, Any]) -> list[str]:
    parameters = point["parameters"]
    finished = point["test"]["n"] if point["test"] else 0
    return [
        *map(str, point["settings"].values()),
        f"{finished}, {point['diverged']} diverged" if point["diverged"] else str(finished),
        _score(point["test"]),
        _score(point["validation"]),
        MISSING if parameters is None else format_count(parameters),
        format_duration(point["wall_seconds"]),
    ]


def _score(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return MISSING
    spread = "" if summary["std"] is None else f" ± {summary['std']:.3g}"
    return f"{summary['mean']:.4g}{spread}"
