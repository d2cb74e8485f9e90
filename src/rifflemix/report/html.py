"""report.html: one file that shows a comparison, with nothing fetched from anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from rifflemix.report.curves import accuracy_curves, loss_curves
from rifflemix.report.notes import partial_note
from rifflemix.report.table import MISSING, comparison_rows, table_cells, table_headers
from rifflemix.report.units import format_duration, format_percent, format_rate

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #595959; --line: #d5d5d5;
  --page: #ffffff; --band: #f4f4f4; --own: #0060a8; --other: #c4c4c4; --mark: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --soft: #b0b0b0; --line: #444444;
  --page: #161616; --band: #222222; --own: #6cb6ff; --other: #4d4d4d; --mark: #ffb454; } }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p.lead, caption, figcaption { color: var(--soft); }
p.partial { border-left: .3rem solid var(--mark); padding-left: .8rem; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; padding-top: .4rem; font-size: .9rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; } td.text { white-space: normal; }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
thead th { background: var(--band); vertical-align: bottom; }
tbody th { font-weight: 500; }
td.best { font-weight: 700; }
figure { margin: 0; } img { max-width: 100%; height: auto; background: #ffffff;
  border-radius: .4rem; border: 1px solid var(--line); }
.panels { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); }
svg { width: 100%; height: auto; font: 10px system-ui, sans-serif; fill: var(--soft); }
svg .name { font-size: 12px; font-weight: 600; fill: var(--ink); }
svg .axis { fill: none; stroke: var(--soft); stroke-width: 1; }
svg polyline { fill: none; stroke-width: 1.1; }
svg .other { stroke: var(--other); stroke-width: .7; } svg .own { stroke: var(--own);
  stroke-width: 1.8; }
pre { overflow-x: auto; background: var(--band); padding: .8rem; border-radius: .4rem;
  font-size: .85rem; }
summary { cursor: pointer; }
"""

_HOW_TO_READ = (
    "In the plot, further right is faster and further up is more accurate; a smaller disk needs "
    "less memory. A mixer is better than another in every way only where it lies to the right, "
    "above, and is smaller. Bars show one standard deviation of accuracy over seeds, and the "
    "slowest and fastest seed; where bars overlap, no difference has been shown."
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
        _section("Results", _table(results) + _list(notes)),
        _section("Accuracy, speed and memory", _plot(results, plot)),
        _section("Learning curves", _curves(results)),
        _section("Every run", _runs(results)),
        _section("How it was made", _origin(results)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(title: str, results: Mapping[str, Any]) -> str:
    environment = results["environment"]
    lead = f"{results['command']} · {environment['time']}"
    partial = (
        ""
        if results["status"] == "complete"
        else f'<p class="partial" role="status">{escape(partial_note(results))}</p>'
    )
    return f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{partial}</header>'


def _section(heading: str, body: str) -> str:
    name = heading.lower().replace(",", "").replace(" ", "-")
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(heading)}</h2>{body}</section>'
    )


def _table(results: Mapping[str, Any]) -> str:
    body = []
    last = len(table_headers()) - 1
    for first, *cells in table_cells(comparison_rows(results)):
        columns = "".join(
            f"<td{_class(cell.best, text=index == last)}>{escape(cell.text)}</td>"
            for index, cell in enumerate(cells, start=1)
        )
        body.append(f'<tr><th scope="row">{escape(first.text)}</th>{columns}</tr>')
    return _html_table(table_headers(), body, "Bold: best of its column.", text_columns={last})


def _class(best: bool, *, text: bool) -> str:
    names = [name for name, on in (("best", best), ("text", text)) if on]
    return f' class="{" ".join(names)}"' if names else ""


def _html_table(
    headers: list[str], rows: list[str], caption: str, text_columns: Iterable[int] = ()
) -> str:
    texts = set(text_columns)
    head = "".join(
        f'<th scope="col"{_class(False, text=index in texts)}>{escape(header)}</th>'
        for index, header in enumerate(headers)
    )
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _list(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _plot(results: Mapping[str, Any], plot: bytes) -> str:
    data = base64.b64encode(plot).decode("ascii")
    described = "; ".join(
        f"{row.title}: {format_percent(row.test.mean)} % at {format_rate(row.steps_per_second)} "
        "steps per second"
        for row in comparison_rows(results)
        if row.test and row.steps_per_second
    )
    alt = f"Test accuracy against training steps per second. {described or 'No run yet'}."
    return (
        f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(_HOW_TO_READ)}</figcaption></figure>"
    )


def _curves(results: Mapping[str, Any]) -> str:
    return (
        "<p>One panel a mixer, one line a seed; the other mixers' lines are grey.</p>"
        "<h3>Validation accuracy, %</h3>"
        + accuracy_curves(results)
        + "<h3>Training loss</h3>"
        + loss_curves(results)
    )


def _runs(results: Mapping[str, Any]) -> str:
    rows = [
        f'<tr><th scope="row">{escape(run["mixer"])}</th><td>{run["seed"]}</td>'
        f"<td>{format_percent(run['test']['accuracy'])}</td>"
        f"<td>{format_percent(run['validation']['accuracy'])}</td>"
        f"<td>{run['best_step']}</td><td>{_rate(run['steps_per_second'])}</td>"
        f"<td>{escape(format_duration(run['wall_seconds']))}</td></tr>"
        for run in results["runs"]
    ]
    headers = ["Mixer", "Seed", "Test, %", "Validation, %", "Chosen step", "Steps/s", "Wall time"]
    return _html_table(headers, rows, "The raw numbers are in results.json beside this page.")


def _rate(steps_per_second: float | None) -> str:
    return MISSING if steps_per_second is None else format_rate(steps_per_second)


def _origin(results: Mapping[str, Any]) -> str:
    blocks = {
        "Configuration": results["config"],
        "Data": results["task"],
        "Protocol": results["protocol"],
        "Environment": results["environment"],
    }
    papers = _list(f"{mixer['title']}: {mixer['paper']}" for mixer in results["mixers"])
    details = "".join(
        f"<details><summary>{escape(name)}</summary>"
        f"<pre>{escape(json.dumps(block, indent=2, ensure_ascii=False))}</pre></details>"
        for name, block in blocks.items()
    )
    return f"<h3>Papers</h3>{papers}{details}"
