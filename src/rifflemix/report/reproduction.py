"""Reproductions shown: one run's summary, and all runs as the papers' tables."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rifflemix.recipes import Recipe, get_recipe, list_recipes
from rifflemix.report.bubbles import Bubble, bubble_chart
from rifflemix.report.curves import panels
from rifflemix.report.page import bullets, page, section, table
from rifflemix.report.table import MISSING
from rifflemix.report.units import format_bytes, format_duration, format_percent, format_rate

Result = Mapping[str, Any]
Found = Sequence[tuple[Path, Result]]

_HEADERS = ("Row", "Column", "Printed", "Ours", "Steps", "Width", "Seeds", "Parameters")
_MORE_HEADERS = ("Steps/s", "MFU, %", "Memory", "Files")
_EXPLAINED = (
    "Ours is the test value of the weights that the validation split chose; over several seeds "
    "the mean and the sample standard deviation.",
    "Steps are those trained of those that the paper's run makes; where they are fewer, or the "
    "width is not 1, the run is a reduced one and its number no reproduction of the printed one.",
    "A run that was stopped shows its best validation value, marked (val.).",
    "Numbers that were not run are empty. Memory is the peak of the process, on a GPU of its "
    "tensors. MFU counts multiplications only: sorting counts as nothing.",
)


@dataclass(frozen=True)
class Entry:
    """A recipe with the runs that share one reduction of it; no runs: not run yet."""

    recipe: Recipe
    runs: tuple[tuple[Path, Result], ...] = ()

    @property
    def values(self) -> list[float]:
        """Ours of the finished runs."""
        return [run["ours"] for _, run in self.runs if run["ours"] is not None]

    def median(self, key: str) -> float | None:
        """The median of a number of the runs."""
        numbers = [run[key] for _, run in self.runs if run[key] is not None]
        return statistics.median(numbers) if numbers else None


def summary_rows(results: Result) -> list[tuple[str, str]]:
    """What the terminal shows of one run: labels and texts."""
    unit = results["unit"]
    rows = [
        ("printed", _number(results["printed"], unit)),
        ("ours (test)", _number(results["ours"], unit)),
        (
            "difference",
            MISSING if results["difference"] is None else f"{results['difference']:+.2f}",
        ),
        ("best on validation", _number(results["validation"], unit)),
        ("steps", f"{results['steps']:,} of the paper's {results['steps_planned']:,}"),
    ]
    if results["recipe"]["width"] != 1:
        rows.append(("width", f"{results['recipe']['width']:g} of the paper's"))
    if results["is_reduced"]:
        rows.append(("reduced run", "its number is no reproduction of the printed one"))
    if results["steps_per_second"] is not None:
        rows.append(("steps/s", format_rate(results["steps_per_second"])))
    if results["utilisation"] is not None:
        rows.append(("model FLOP utilisation", f"{100 * results['utilisation']['share']:.1f} %"))
    rows += [
        ("parameters", f"{results['parameters']:,}"),
        ("wall time", format_duration(results["wall_seconds"])),
    ]
    return rows + [("note", note) for note in results["recipe"]["notes"]]


def report_entries(found: Found) -> list[dict[str, Any]]:
    """The report as JSON values: an entry for each recipe and reduction of it."""
    return [
        {
            "name": entry.recipe.name,
            "table": entry.recipe.table,
            "row": entry.recipe.row,
            "column": entry.recipe.column,
            "printed": entry.recipe.printed,
            "unit": entry.recipe.unit,
            "ours": entry.values,
            "files": [str(path) for path, _ in entry.runs],
        }
        for entry in _entries(found)
    ]


def report_files(found: Found, out: Path) -> dict[str, bytes]:
    """report.md and report.html, by name; links to raw files are relative to `out`."""
    tables = _tables(found)
    return {
        "report.md": _markdown(tables, out).encode(),
        "report.html": _html(tables, out).encode(),
    }


def _entries(found: Found) -> list[Entry]:
    """In the order of the recipes; runs of names that are no recipe any more come last."""
    groups: dict[str, dict[tuple[Any, ...], list[tuple[Path, Result]]]] = {}
    for path, run in found:
        recipe = run["recipe"]
        train = recipe["train"]
        reduction = (train["max_steps"], run["steps"], recipe["width"], train["batch_size"])
        groups.setdefault(recipe["name"], {}).setdefault(reduction, []).append((path, run))
    entries = []
    for name in list_recipes():
        runs = groups.pop(name, {})
        entries += [Entry(get_recipe(name), tuple(same)) for _, same in sorted(runs.items())] or [
            Entry(get_recipe(name))
        ]
    for others in groups.values():
        for _, same in sorted(others.items()):
            entries.append(Entry(Recipe.from_dict(same[0][1]["recipe"]), tuple(same)))
    return entries


def _tables(found: Found) -> dict[str, list[Entry]]:
    tables: dict[str, list[Entry]] = {}
    for entry in _entries(found):
        tables.setdefault(f"{entry.recipe.paper}: {entry.recipe.table}", []).append(entry)
    return tables


def _cells(entry: Entry) -> list[str]:
    recipe = entry.recipe
    cells = [recipe.row, recipe.column, _number(recipe.printed, recipe.unit)]
    if not entry.runs:
        return [*cells, *[""] * (len(_HEADERS) + len(_MORE_HEADERS) - 4)]
    first = entry.runs[0][1]
    share = [run["utilisation"]["share"] for _, run in entry.runs if run["utilisation"]]
    speed, memory = entry.median("steps_per_second"), entry.median("peak_memory_bytes")
    return [
        *cells,
        _ours(entry),
        f"{first['steps']:,} of {first['steps_planned']:,}",
        f"{first['recipe']['width']:g}",
        str(len({run["seed"] for _, run in entry.runs})),
        f"{first['parameters']:,}",
        "" if speed is None else format_rate(speed),
        "" if not share else format_percent(statistics.median(share)),
        "" if memory is None else format_bytes(memory),
    ]


def _ours(entry: Entry) -> str:
    unit, values = entry.recipe.unit, entry.values
    if not values:
        best = entry.median("validation")
        return "" if best is None else f"{_number(best, unit)} (val.)"
    text = f"{statistics.fmean(values):.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2f}"
    return f"{text} {unit}"


def _number(value: float | None, unit: str) -> str:
    return MISSING if value is None else f"{value:.2f} {unit}"


def _link(path: Path, out: Path) -> str:
    return quote(os.path.relpath(path.absolute(), out.absolute()).replace(os.sep, "/"))


def _markdown(tables: Mapping[str, Sequence[Entry]], out: Path) -> str:
    headers = (*_HEADERS, *_MORE_HEADERS)
    lines = ["# Reproductions", "", *[f"- {sentence}" for sentence in _EXPLAINED]]
    for title, entries in tables.items():
        lines += ["", f"## {title}", "", _markdown_row(headers)]
        lines.append(_markdown_row(["---"] * len(headers)))
        for entry in entries:
            files = ", ".join(f"[{run['seed']}]({_link(path, out)})" for path, run in entry.runs)
            lines.append(_markdown_row([*_cells(entry), files]))
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _html(tables: Mapping[str, Sequence[Entry]], out: Path) -> str:
    title = "rifflemix: the papers' tables"
    sections = [f"<header><h1>{title}</h1></header>{bullets(_EXPLAINED)}"]
    for name, entries in tables.items():
        rows = [_html_row(entry, out) for entry in entries]
        body = table([*_HEADERS, *_MORE_HEADERS], rows, "Empty: not run.", text_columns={1})
        sections.append(section(name, body + _pictures(entries)))
    return page(title, sections)


def _html_row(entry: Entry, out: Path) -> str:
    first, second, *cells = _cells(entry)
    links = ", ".join(
        f'<a href="{escape(_link(path, out))}">seed {run["seed"]}</a>' for path, run in entry.runs
    )
    columns = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return (
        f'<tr><th scope="row">{escape(first)}</th><td class="text">{escape(second)}</td>'
        f"{columns}<td>{links}</td></tr>"
    )


def _pictures(entries: Sequence[Entry]) -> str:
    """Learning curves of every column that was run, and disks where there are several rows."""
    columns: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.runs:
            columns.setdefault(entry.recipe.column, []).append(entry)
    return "".join(_column_pictures(name, of_column) for name, of_column in columns.items())


def _column_pictures(name: str, entries: Sequence[Entry]) -> str:
    names = _labels(entries)
    curves = {
        key: [_validation_curve(entry.recipe, run) for _, run in entry.runs]
        for key, entry in zip(names, entries, strict=True)
    }
    unit = entries[0].recipe.unit
    heading = (
        f"<h3>{escape(name)}: validation {escape(entries[0].recipe.metric)}, {escape(unit)}</h3>"
    )
    drawn = {key: lines for key, lines in curves.items() if any(lines)}
    bubbles = [bubble for bubble in map(_bubble, names, entries) if bubble is not None]
    chart = bubble_chart(name, unit, bubbles) if len(bubbles) > 1 else ""
    return heading + panels({key: key for key in drawn}, drawn) + chart if drawn or chart else ""


def _labels(entries: Sequence[Entry]) -> list[str]:
    """A name for each entry, no two alike: the row, how long it was trained, and if narrower."""
    names: list[str] = []
    for entry in entries:
        first = entry.runs[0][1]
        width = first["recipe"]["width"]
        name = f"{entry.recipe.row}, {first['steps']:,} steps"
        name += "" if width == 1 else f", width {width:g}"
        again = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({again + 1})" if again else name)
    return names


def _validation_curve(recipe: Recipe, run: Result) -> list[tuple[float, float]]:
    """Step and value of every evaluation; none where the metric is the test split's only."""
    history = run["result"]["validation"]
    return [(at["step"], recipe.shown(at[recipe.metric])) for at in history if recipe.metric in at]


def _bubble(name: str, entry: Entry) -> Bubble | None:
    speed, memory = entry.median("steps_per_second"), entry.median("peak_memory_bytes")
    if not entry.values or speed is None or memory is None:
        return None
    return Bubble(name, speed, statistics.fmean(entry.values), memory)
