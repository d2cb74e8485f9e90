"""Write all reproductions as report.md and as a self-contained report.html."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rifflemix.lab.recipes import Recipe
from rifflemix.lab.report.page import panels, render
from rifflemix.lab.report.units import format_bytes, format_percent, format_rate
from rifflemix.lab.reproduction.records import Reproduction
from rifflemix.lab.reproduction.tables import Entry, Found, PaperTable, decimals, paper_tables
from rifflemix.text import Markdown, bold, bullet_lines, link, markdown_text, table_lines

_TITLE = "rifflemix: the papers' tables"
_EXPLAINED = (
    "A cell contains the printed number and our number. Ours is the test value of the chosen "
    "weights: the mean and the sample standard deviation over seeds. If a seed was run in several "
    "precisions, the run in the recipe's precision counts. The cell is empty if there is no run. "
    "- means that the paper prints no number for this data.",
    "The recipe chooses the weights: the last step, or the best evaluation on the validation "
    "split. The table of runs names the choice and shows the test values of both. Runs of earlier "
    "versions have no value of the last step, and runs without a validation split have no best "
    "evaluation.",
    "* marks a reduced run: fewer steps, smaller batches or a narrower model than in the paper. "
    "Its number does not reproduce the printed number.",
    "† marks a run whose data or settings differ from the recipe. The table shows no difference "
    "from the printed number.",
    "A difference is ours minus the printed number. The standard error in brackets counts the test "
    "samples of both numbers, as if the two test sets were independent. A note names the number "
    "whose error is unknown.",
    "The name of a run says if it started from the weights of another run. A cell shows such a run "
    "only if there is no finished run with new weights.",
    "A value marked (not comparable) does not measure the same as the printed number. The recipe "
    "gives the reason.",
    "A run that was stopped shows its best validation value, marked (val.).",
    "Memory is the peak of the process, or of its tensors on a GPU. MFU is model FLOP utilisation. "
    "It counts matrix products only, and no sorting.",
)
_RUN_HEADERS = (
    "Run", "Column", "Printed", "Ours", "Difference", "Weights", "Last step", "Best evaluation",
    "Steps", "Batch", "Width", "Seeds", "Parameters", "Steps/s", "MFU, %", "Memory", "Files",
)  # fmt: skip
_OVERVIEW_HEADERS = ("Table", "Recipes", "Run", "In full")


def report_files(found: Found, out: Path) -> dict[str, bytes]:
    """Return file name -> content. Links to raw files are relative to `out`."""
    tables = paper_tables(found)
    return {
        "report.md": _markdown(tables, out).encode(),
        "report.html": _html(tables, out).encode(),
    }


def _run_cells(entry: Entry) -> list[str]:
    """Return the cells of an entry in the table of runs, without its files."""
    recipe, first = entry.recipe, entry.runs[0][1]
    batch, planned = entry.batch
    share = entry.median(lambda run: None if run.utilisation is None else run.utilisation.share)
    speed = entry.median(lambda run: run.steps_per_second)
    memory = entry.median(lambda run: run.peak_memory_bytes)
    return [
        recipe.row + _start(entry),
        recipe.column,
        entry.printed(),
        entry.ours(),
        _difference(entry),
        entry.weights,
        entry.tested("last"),
        entry.tested("best"),
        f"{first.steps:,} of {first.steps_planned:,}",
        f"{batch:,} of {planned:,}",
        f"{first.recipe.width:g}",
        str(len({run.seed for _, run in entry.runs})),
        f"{first.parameters:,}",
        "" if speed is None else format_rate(speed),
        "" if share is None else format_percent(share),
        "" if memory is None else format_bytes(memory),
    ]


def _difference(entry: Entry) -> str:
    """Return the difference with its standard error, or the reason why it is missing."""
    found = entry.agreement
    if found is None:
        return entry.changed
    digits = decimals(entry.recipe.unit, entry.recipe.printed or 0.0)
    if found.error is None:
        return f"{found.difference:+{digits}}"
    without = f" without {found.unknown}" if found.unknown else ""
    return f"{found.difference:+{digits}} ({found.error:{digits}}{without})"


def _start(entry: Entry) -> str:
    """Return the suffix of a name for runs that started from other weights."""
    return "" if entry.started_from is None else f", started from {entry.started_from}"


def _cell(entry: Entry | None) -> tuple[str, str]:
    """Return the printed number, and our number with its marks."""
    if entry is None:
        return "", ""
    ours = entry.ours() if entry.runs else ""
    if not ours:
        return entry.printed(), ""
    if entry.recipe.not_comparable:
        ours += " (not comparable)"
    return entry.printed(), ours + "*" * entry.is_reduced + "†" * bool(entry.changed)


def _headers(of_paper: PaperTable) -> list[str]:
    """Return the headers of a paper's table."""
    columns = [f"{column}, {unit}" for column, unit in of_paper.columns]
    unit = of_paper.columns[0][1]
    return ["Row", *columns, *([f"Average, {unit}"] if of_paper.averages else [])]


def _cells(of_paper: PaperTable, row: str) -> list[tuple[str, str]]:
    """Return printed and reproduced numbers of a row, and their averages if any."""
    cells = [_cell(of_paper.at(row, column)) for column, _ in of_paper.columns]
    return [*cells, of_paper.averages.get(row, ("", ""))] if of_paper.averages else cells


def _link(path: Path, out: Path) -> str:
    return quote(os.path.relpath(path.absolute(), out.absolute()).replace(os.sep, "/"))


# Markdown.


def _markdown(tables: Sequence[PaperTable], out: Path) -> str:
    lines = [f"# {_TITLE}", "", *bullet_lines(_EXPLAINED)]
    lines += ["", *table_lines(_OVERVIEW_HEADERS, _overview(tables))]
    for of_paper in tables:
        headers = _headers(of_paper)
        rows = [[row, *map(_markdown_cell, _cells(of_paper, row))] for row in of_paper.rows]
        lines += ["", f"## {markdown_text(of_paper.title)}", "", *table_lines(headers, rows)]
        if of_paper.runs:
            runs = [[*_run_cells(entry), _markdown_files(entry, out)] for entry in of_paper.runs]
            lines += ["", *table_lines(_RUN_HEADERS, runs)]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: tuple[str, str]) -> str:
    printed, ours = cell
    if not ours:
        return printed
    number = ours.rstrip("*†")
    marks = markdown_text(ours.removeprefix(number))
    return Markdown(f"{markdown_text(printed)} / {bold(number)}{marks}")


def _markdown_files(entry: Entry, out: Path) -> Markdown:
    files = (link(entry.run_name(run), _link(path, out)) for path, run in entry.runs)
    return Markdown(", ".join(files))


def _overview(tables: Sequence[PaperTable]) -> list[list[str]]:
    return [[of_paper.title, *map(str, of_paper.counts())] for of_paper in tables]


# HTML.


def _html(tables: Sequence[PaperTable], out: Path) -> str:
    return render(
        "reproductions.html",
        title=_TITLE,
        explained=_EXPLAINED,
        overview_headers=_OVERVIEW_HEADERS,
        overview=_overview(tables),
        run_headers=_RUN_HEADERS,
        tables=[_shown(of_paper, out) for of_paper in tables],
    )


def _shown(of_paper: PaperTable, out: Path) -> dict[str, Any]:
    """Return the values of one table for the template."""
    return {
        "title": of_paper.title,
        "caption": "Printed numbers, and our numbers in color."
        if of_paper.runs
        else "Printed numbers.",
        "headers": _headers(of_paper),
        "rows": [(row, _cells(of_paper, row)) for row in of_paper.rows],
        "runs": [
            (
                _run_cells(entry),
                [(entry.run_name(run), _link(path, out)) for path, run in entry.runs],
            )
            for entry in of_paper.runs
        ],
        "pictures": _pictures(of_paper.runs),
    }


def _pictures(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Draw the learning curves of every column with runs."""
    columns: dict[str, list[Entry]] = {}
    for entry in entries:
        columns.setdefault(entry.recipe.column, []).append(entry)
    return [_picture(name, of_column) for name, of_column in columns.items()]


def _picture(name: str, entries: Sequence[Entry]) -> dict[str, Any]:
    names = _labels(entries)
    curves = {
        key: [_validation_curve(entry.recipe, run) for _, run in entry.runs]
        for key, entry in zip(names, entries, strict=True)
    }
    recipe = entries[0].recipe
    drawn = {key: lines for key, lines in curves.items() if any(lines)}
    return {
        "heading": f"{name}: validation {recipe.metric}, {recipe.unit}",
        "curves": panels({key: key for key in drawn}, drawn) if drawn else None,
    }


def _labels(entries: Sequence[Entry]) -> list[str]:
    """Return a unique name for each entry: the row and the differences of its runs."""
    names: list[str] = []
    for entry in entries:
        first = entry.runs[0][1]
        width = first.recipe.width
        name = f"{entry.recipe.row}, {first.steps:,} steps"
        batch, planned = entry.batch
        name += "" if batch == planned else f", batch {batch:,}"
        name += "" if width == 1 else f", width {width:g}"
        name += f", {entry.changed}" if entry.changed else ""
        name += _start(entry)
        again = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({again + 1})" if again else name)
    return names


def _validation_curve(recipe: Recipe, run: Reproduction) -> list[tuple[float, float]]:
    """Return step and value of every evaluation that has the metric."""
    history = run.result.validation
    return [(at["step"], recipe.shown(at[recipe.metric])) for at in history if recipe.metric in at]
