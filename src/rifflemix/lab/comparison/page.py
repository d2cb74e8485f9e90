"""report.html: one file that shows a comparison, with nothing fetched from anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from rifflemix.errors import require_packages
from rifflemix.lab.comparison.curves import loss_curves, score_curves
from rifflemix.lab.comparison.differences import difference_cells, difference_headers, how_to_read
from rifflemix.lab.comparison.notes import partial_note
from rifflemix.lab.comparison.table import comparison_rows, table_cells, table_headers
from rifflemix.lab.comparison.tuning import HOW_TO_READ as TRIALS
from rifflemix.lab.comparison.tuning import tuning_cells, tuning_headers, tuning_title
from rifflemix.lab.report.page import render
from rifflemix.lab.report.units import (
    MISSING,
    format_duration,
    format_metric,
    format_rate,
    metric_title,
)

_PLOT = (
    "In the plot, further right is faster and further {up} is better; a smaller disk needs less "
    "memory. A mixer is better than another in every way only where it lies to the right, "
    "further {up}, and is smaller. Bars show one standard deviation over seeds, and the slowest "
    "and fastest seed. Scores whose bars overlap may differ by more than noise all the same: the "
    "table says which do."
)


_RUN_HEADERS = ("Mixer", "Seed", "Test", "Validation", "Chosen step", "Steps/s", "Wall time")


def html_report(results: Mapping[str, Any], notes: Iterable[str], plot: bytes) -> str:
    """The whole page; every value in it is escaped.

    Args:
        results: a comparison's results.
        notes: sentences that go under the table.
        plot: PNG bytes.
    """
    rows = comparison_rows(results)
    metric = rows[0].metric
    return render(
        "comparison.html",
        title=f"rifflemix compare: {results['task']['title']}",
        lead=f"{results['command']} · {results['environment']['time']}",
        partial="" if results["status"] == "complete" else partial_note(results),
        headers=table_headers(rows),
        rows=table_cells(rows),
        notes=list(notes),
        differences={
            "headers": difference_headers(rows),
            "rows": difference_cells(rows),
            "caption": how_to_read(rows),
        },
        tuning={
            "title": tuning_title(results),
            "headers": tuning_headers(results),
            "rows": tuning_cells(results),
            "caption": TRIALS,
        },
        metric=_metric(results),
        metric_title=metric_title(metric),
        plot=_plot(results, plot),
        scores=score_curves(results, metric),
        losses=loss_curves(results),
        run_headers=_RUN_HEADERS,
        runs=[_run(run, metric) for run in results["runs"]],
        papers=[f"{mixer['title']}: {mixer['paper']}" for mixer in results["mixers"]],
        blocks=_blocks(results),
    )


def html_fragment(results: Mapping[str, Any], notes: Iterable[str]) -> str:
    """Table, notes and plot for a notebook; every value in it is escaped.

    Raises:
        InputError: jinja2 or matplotlib is not installed.
    """
    require_packages("a table with its plot", "compare", "jinja2", "matplotlib", "scipy")
    from rifflemix.lab.comparison.plot import comparison_plot

    rows = comparison_rows(results)
    return render(
        "notebook.html",
        title=results["task"]["title"],
        headers=table_headers(rows),
        rows=table_cells(rows),
        notes=list(notes),
        plot=_plot(results, comparison_plot(results)),
    )


def _plot(results: Mapping[str, Any], plot: bytes) -> dict[str, str]:
    rows = comparison_rows(results)
    described = "; ".join(
        f"{row.title}: {format_metric(row.metric, row.test.mean)} at "
        f"{format_rate(row.steps_per_second)} steps per second"
        for row in rows
        if row.test and row.steps_per_second
    )
    return {
        "data": base64.b64encode(plot).decode("ascii"),
        "alt": f"Test {_metric(results)} against training steps per second. "
        f"{described or 'No run yet'}.",
        "caption": _PLOT.format(up="up" if rows[0].higher_is_better else "down"),
    }


def _run(run: Mapping[str, Any], metric: str) -> list[Any]:
    """The cells of one run."""
    return [
        run["mixer"],
        run["seed"],
        format_metric(metric, run["test"][metric]),
        format_metric(metric, run["validation"][metric]),
        run["best_step"],
        _rate(run["steps_per_second"]),
        format_duration(run["wall_seconds"]),
    ]


def _metric(results: Mapping[str, Any]) -> str:
    return comparison_rows(results)[0].metric.replace("_", " ")


def _rate(steps_per_second: float | None) -> str:
    return MISSING if steps_per_second is None else format_rate(steps_per_second)


def _blocks(results: Mapping[str, Any]) -> dict[str, str]:
    """The blocks of results.json that the page shows as they are."""
    blocks = {
        "Configuration": results["config"],
        "Data": results["task"],
        "Protocol": results["protocol"],
        "Environment": results["environment"],
    }
    return {name: json.dumps(block, indent=2, ensure_ascii=False) for name, block in blocks.items()}
