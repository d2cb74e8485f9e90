"""The files that show the results of a comparison: tables, plots and report.html."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rifflemix.errors import require_packages
from rifflemix.files import write_bytes
from rifflemix.json_values import encode
from rifflemix.lab.comparison.pages.notes import comparison_notes, partial_note
from rifflemix.lab.comparison.pages.table import HOW_TO_READ as LENGTHS
from rifflemix.lab.comparison.pages.table import (
    all_lengths,
    difference_cells,
    difference_headers,
    how_to_read,
    length_cells,
    length_headers,
    markdown_differences,
    markdown_lengths,
    markdown_table,
    table_cells,
    table_headers,
)
from rifflemix.lab.comparison.pages.tuning import (
    markdown_tuning,
    tuning_caption,
    tuning_cells,
    tuning_headers,
    tuning_title,
)
from rifflemix.lab.comparison.records import Results, RunEntry, of_mixer
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.report.page import Curve, Panels, panels, render
from rifflemix.lab.report.units import (
    MISSING,
    format_count,
    format_duration,
    format_metric,
    format_rate,
    metric_title,
    metric_value,
)

HEADERS = ("Class", "Test labels", "Precision", "Recall", "F1")


@dataclass(frozen=True)
class ClassTables:
    """Tables of one mixer, of its run with the best validation score.

    Attributes:
        title: Mixer and seed.
        names: Names of the classes.
        scores: Row of each class: name, number of test labels, precision, recall, F1.
        matrix: Row of each true class: its name, and the numbers of predicted classes.
    """

    title: str
    names: list[str]
    scores: list[list[str]]
    matrix: list[list[str]]


def class_tables(table: Table) -> list[ClassTables]:
    """Return the tables of each mixer; empty if the task has no confusion matrix."""
    names, found = table.results.task.classes, []
    for row in table.rows:
        runs = [r for r in of_mixer(table.results.runs, row.name) if r.confusion is not None]
        if not runs or names is None:
            continue
        sign = 1 if table.higher_is_better else -1
        best = max(runs, key=lambda run: sign * run.validation[table.metric])
        found.append(_tables(f"{row.title}, seed {best.seed}", names, best))
    return found


def _tables(title: str, names: list[str], run: RunEntry) -> ClassTables:
    counts = run.confusion or []
    predicted = [sum(row[k] for row in counts) for k in range(len(names))]
    scores = []
    for k, name in enumerate(names):
        actual, right = sum(counts[k]), counts[k][k]
        shares = (
            _share(right, predicted[k]),
            _share(right, actual),
            _share(2 * right, actual + predicted[k]),
        )
        scores.append([name, format_count(actual), *shares])
    matrix = [[name, *map(format_count, row)] for name, row in zip(names, counts, strict=True)]
    return ClassTables(title, names, scores, matrix)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else MISSING


def score_curves(table: Table) -> Panels:
    """Draw the metric on the validation split against the step, shares in percent."""
    metric = table.metric

    def curve(run: RunEntry) -> Curve:
        return [(at["step"], metric_value(metric, at[metric])) for at in run.validation_curve]

    return _panels(table, curve)


def loss_curves(table: Table) -> Panels:
    """Draw the training loss against the step."""
    return _panels(table, lambda run: [(at["step"], at["loss"]) for at in run.train_curve])


def _panels(table: Table, curve: Callable[[RunEntry], Curve]) -> Panels:
    curves: dict[str, list[Curve]] = {}
    for run in table.results.runs:
        curves.setdefault(run.mixer, []).append(curve(run))
    return panels({row.name: row.title for row in table.rows if row.name in curves}, curves)


_PLOT = (
    "In the plot, further right is faster and further {up} is better; a smaller disk needs less "
    "memory. A mixer is better than another in every way only where it lies to the right, "
    "further {up}, and is smaller. Bars show one standard deviation over seeds, and the slowest "
    "and fastest seed. Scores whose bars overlap may differ by more than noise all the same: the "
    "table says which do."
)
_RUN_HEADERS = ("Mixer", "Seed", "Test", "Validation", "Chosen step", "Steps/s", "Wall time")


def html_report(
    table: Table, notes: Iterable[str], plot: bytes, further: Mapping[str, bytes]
) -> str:
    """Write the whole page; every value in it is escaped.

    Args:
        table: the comparison.
        notes: sentences under the table.
        plot: PNG bytes.
        further: file name -> PNG bytes of further plots.
    """
    results = table.results
    return render(
        "comparison.html",
        title=f"rifflemix compare: {results.task.title}",
        lead=f"{results.command} · {results.environment.time}",
        partial="" if results.is_complete else partial_note(results),
        headers=table_headers(table),
        rows=table_cells(table),
        notes=list(notes),
        differences={
            "headers": difference_headers(table),
            "rows": difference_cells(table),
            "caption": how_to_read(table),
        },
        tuning={
            "title": tuning_title(results),
            "headers": tuning_headers(results),
            "rows": tuning_cells(results),
            "caption": tuning_caption(results),
        },
        metric=table.metric_words,
        metric_title=metric_title(table.metric),
        plot=_plot(table, plot),
        lengths={
            "headers": length_headers(table),
            "rows": length_cells(table),
            "caption": LENGTHS,
            "plot": _image(further.get("lengths.png")),
        },
        state=_image(further.get("state.png")),
        scores=score_curves(table),
        losses=loss_curves(table),
        classes=class_tables(table),
        class_headers=HEADERS,
        run_headers=_RUN_HEADERS,
        runs=[_run(run, table.metric) for run in results.runs],
        papers=[f"{mixer.title}: {mixer.paper}" for mixer in results.mixers],
        blocks=_blocks(results),
    )


def html_fragment(table: Table, notes: Iterable[str]) -> str:
    """Write table, notes and plot for a notebook; every value in it is escaped.

    Raises:
        InputError: jinja2 or matplotlib is not installed.
    """
    require_packages("a table with its plot", "compare", "jinja2", "matplotlib", "scipy")
    from rifflemix.lab.comparison.pages.plot import comparison_plot

    return render(
        "notebook.html",
        title=table.results.task.title,
        headers=table_headers(table),
        rows=table_cells(table),
        notes=list(notes),
        plot=_plot(table, comparison_plot(table)),
    )


def _plot(table: Table, plot: bytes) -> dict[str, str]:
    described = "; ".join(
        f"{row.title}: {format_metric(row.metric, row.test.mean)} at "
        f"{format_rate(row.steps_per_second)} steps per second"
        for row in table.rows
        if row.test and row.steps_per_second
    )
    return {
        "data": _image(plot),
        "alt": f"Test {table.metric_words} against training steps per second. "
        f"{described or 'No run yet'}.",
        "caption": _PLOT.format(up="up" if table.higher_is_better else "down"),
    }


def _image(png: bytes | None) -> str:
    """Encode a PNG for a page; empty without a plot."""
    return "" if png is None else base64.b64encode(png).decode("ascii")


def _run(run: RunEntry, metric: str) -> list[str]:
    speed = run.steps_per_second
    return [
        run.mixer,
        str(run.seed),
        format_metric(metric, run.metrics("test")[metric]),
        format_metric(metric, run.validation[metric]),
        str(run.best_step),
        MISSING if speed is None else format_rate(speed),
        format_duration(run.wall_seconds),
    ]


def _blocks(results: Results) -> dict[str, str]:
    """Return the blocks of results.json that the page shows unchanged."""
    blocks = {
        "Configuration": results.config,
        "Data": results.task,
        "Protocol": results.protocol,
        "Environment": results.environment,
    }
    return {
        name: json.dumps(encode(block), indent=2, ensure_ascii=False)
        for name, block in blocks.items()
    }


def comparison_files(table: Table) -> dict[str, bytes]:
    """Return the content of table.md, report.html and the plots by name."""
    from rifflemix.lab.comparison.pages.ability_plots import length_figure, state_figure
    from rifflemix.lab.comparison.pages.plot import comparison_plot
    from rifflemix.lab.report.page import figure_png

    notes = comparison_notes(table)
    plot = comparison_plot(table)
    text = markdown_table(table, notes) + markdown_differences(table)
    text += markdown_lengths(table) + markdown_tuning(table.results)
    further = {}
    if all_lengths(table.results):
        further["lengths.png"] = figure_png(length_figure(table))
    if table.shows_states:
        further["state.png"] = figure_png(state_figure(table))
    return {
        "table.md": text.encode(),
        "plot.png": plot,
        "report.html": html_report(table, notes, plot, further).encode(),
        **further,
    }


def write_comparison_files(out: Path, table: Table) -> None:
    """Write the files into the folder of a comparison."""
    for name, content in comparison_files(table).items():
        write_bytes(out / name, content)
