"""report.html: one file that shows a comparison, with nothing fetched from anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from rifflemix.report.curves import loss_curves, score_curves
from rifflemix.report.notes import partial_note
from rifflemix.report.page import bullets, cell_class, page, section, table
from rifflemix.report.table import MISSING, comparison_rows, table_cells, table_headers
from rifflemix.report.units import format_duration, format_metric, format_rate, metric_title

_HOW_TO_READ = (
    "In the plot, further right is faster and further {up} is better; a smaller disk needs less "
    "memory. A mixer is better than another in every way only where it lies to the right, "
    "further {up}, and is smaller. Bars show one standard deviation over seeds, and the slowest "
    "and fastest seed; where bars overlap, no difference has been shown."
)


def html_report(results: Mapping[str, Any], notes: Iterable[str], plot: bytes) -> str:
    """The whole page; every text that comes from outside is escaped.

    Args:
        results: a comparison's results.
        notes: sentences that go under the table.
        plot: PNG bytes.
    """
    title = f"rifflemix compare: {results['task']['title']}"
    sections = [
        _head(title, results),
        section("Results", _table(results) + bullets(notes)),
        section(f"{_metric(results).capitalize()}, speed and memory", _plot(results, plot)),
        section("Learning curves", _curves(results)),
        section("Every run", _runs(results)),
        section("How it was made", _origin(results)),
    ]
    return page(title, sections)


def _head(title: str, results: Mapping[str, Any]) -> str:
    environment = results["environment"]
    lead = f"{results['command']} · {environment['time']}"
    partial = (
        ""
        if results["status"] == "complete"
        else f'<p class="partial" role="status">{escape(partial_note(results))}</p>'
    )
    return f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{partial}</header>'


def _table(results: Mapping[str, Any]) -> str:
    body = []
    rows = comparison_rows(results)
    headers = table_headers(rows)
    last = len(headers) - 1
    for first, *cells in table_cells(rows):
        columns = "".join(
            f"<td{cell_class(cell.best, text=index == last)}>{escape(cell.text)}</td>"
            for index, cell in enumerate(cells, start=1)
        )
        body.append(f'<tr><th scope="row">{escape(first.text)}</th>{columns}</tr>')
    return table(headers, body, "Bold: best of its column.", text_columns={last})


def _plot(results: Mapping[str, Any], plot: bytes) -> str:
    data = base64.b64encode(plot).decode("ascii")
    first = comparison_rows(results)[0]
    described = "; ".join(
        f"{row.title}: {format_metric(row.metric, row.test.mean)} at "
        f"{format_rate(row.steps_per_second)} steps per second"
        for row in comparison_rows(results)
        if row.test and row.steps_per_second
    )
    alt = f"Test {_metric(results)} against training steps per second. {described or 'No run yet'}."
    caption = _HOW_TO_READ.format(up="up" if first.higher_is_better else "down")
    return (
        f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _curves(results: Mapping[str, Any]) -> str:
    metric = comparison_rows(results)[0].metric
    return (
        "<p>One panel a mixer, one line a seed; the other mixers' lines are grey.</p>"
        f"<h3>Validation {escape(metric_title(metric))}</h3>"
        + score_curves(results, metric)
        + "<h3>Training loss</h3>"
        + loss_curves(results)
    )


def _runs(results: Mapping[str, Any]) -> str:
    metric = comparison_rows(results)[0].metric
    rows = [
        f'<tr><th scope="row">{escape(run["mixer"])}</th><td>{run["seed"]}</td>'
        f"<td>{format_metric(metric, run['test'][metric])}</td>"
        f"<td>{format_metric(metric, run['validation'][metric])}</td>"
        f"<td>{run['best_step']}</td><td>{_rate(run['steps_per_second'])}</td>"
        f"<td>{escape(format_duration(run['wall_seconds']))}</td></tr>"
        for run in results["runs"]
    ]
    headers = ["Mixer", "Seed", "Test", "Validation", "Chosen step", "Steps/s", "Wall time"]
    return table(headers, rows, "The raw numbers are in results.json beside this page.")


def _metric(results: Mapping[str, Any]) -> str:
    return comparison_rows(results)[0].metric.replace("_", " ")


def _rate(steps_per_second: float | None) -> str:
    return MISSING if steps_per_second is None else format_rate(steps_per_second)


def _origin(results: Mapping[str, Any]) -> str:
    blocks = {
        "Configuration": results["config"],
        "Data": results["task"],
        "Protocol": results["protocol"],
        "Environment": results["environment"],
    }
    papers = bullets(f"{mixer['title']}: {mixer['paper']}" for mixer in results["mixers"])
    details = "".join(
        f"<details><summary>{escape(name)}</summary>"
        f"<pre>{escape(json.dumps(block, indent=2, ensure_ascii=False))}</pre></details>"
        for name, block in blocks.items()
    )
    return f"<h3>Papers</h3>{papers}{details}"
