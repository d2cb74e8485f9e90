"""Summary of one reproduction, and all reproductions as the tables of the papers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.report.units import MISSING, format_duration, format_rate
from rifflemix.lab.reproduction.agreement import (
    Agreement,
    Average,
    agreement,
    batch_sizes,
    changed_settings,
    data_of,
    is_reduced,
    printed_averages,
    settings_of,
    shares,
)
from rifflemix.lab.reproduction.records import Reproduction

_CHOICES = {"last": "the last step", "best": "the best evaluation on validation"}

Found = Sequence[tuple[Path, Reproduction]]


@dataclass(frozen=True)
class Entry:
    """A recipe and its runs of equal size and settings. No runs: not run yet."""

    recipe: Recipe
    runs: tuple[tuple[Path, Reproduction], ...] = ()

    @property
    def values(self) -> list[float]:
        """Reproduced values of the finished runs, one per seed."""
        return [run.ours for run in self.finished if run.ours is not None]

    @property
    def finished(self) -> list[Reproduction]:
        """The finished runs, one per seed."""
        return one_per_seed([run for _, run in self.runs if run.ours is not None])

    @property
    def weights(self) -> str:
        """Weights that the recipe tests: "last" or "best"."""
        return self.runs[0][1].recipe.weights if self.runs else self.recipe.weights

    def tested_values(self, weights: str) -> list[float]:
        """Return the known test values of the "last" or the "best" weights, one per seed."""
        runs = one_per_seed([run for _, run in self.runs])
        values = [run.ours_best if weights == "best" else run.ours_last for run in runs]
        return [value for value in values if value is not None]

    def tested(self, weights: str) -> str:
        """Return the mean of `tested_values` as text, or an empty string."""
        values = self.tested_values(weights)
        if not values:
            return ""
        return f"{statistics.fmean(values):{decimals(self.recipe.unit, values[0])}}"

    def run_name(self, run: Reproduction) -> str:
        """Return the seed of a run, with its precision if another run has the same seed."""
        same = [other for _, other in self.runs if other.seed == run.seed]
        precision = run.recipe.train.precision
        in_what = "float32" if precision == "no" else precision
        return f"seed {run.seed}" + (f" in {in_what}" if len(same) > 1 else "")

    def median(self, measure: Callable[[Reproduction], float | None]) -> float | None:
        """Return the median of a number over the runs."""
        numbers = [number for _, run in self.runs if (number := measure(run)) is not None]
        return statistics.median(numbers) if numbers else None

    @property
    def batch(self) -> tuple[int, int]:
        """Samples per update of the runs, and of the recipe."""
        return batch_sizes(self.runs[0][1])

    @property
    def changed(self) -> str:
        """Text if data or settings differ from the recipe, or an empty string."""
        return changed_settings(self.runs[0][1])

    @property
    def agreement(self) -> Agreement | None:
        """Difference from the reported value, or None if they are not comparable."""
        finished = self.finished
        return agreement(finished) if finished else None

    @property
    def started_from(self) -> str | None:
        """Origin of the initial weights; None for new weights."""
        origin = self.runs[0][1].started_from
        return None if origin is None else str(origin)

    @property
    def is_reduced(self) -> bool:
        """Whether the width, the updates or the batches are smaller than in the recipe."""
        return is_reduced(self.runs[0][1])

    @property
    def share(self) -> tuple[float, float, float]:
        """Shares of the width, the updates and the batch of the paper's run."""
        return shares(self.runs[0][1])

    def ours(self) -> str:
        """Return mean and deviation over seeds. A stopped run shows its best validation value."""
        values = self.values
        if not values:
            best = self.median(lambda run: run.validation)
            return "" if best is None else f"{best:{decimals(self.recipe.unit, best)}} (val.)"
        digits = decimals(self.recipe.unit, values[0])
        text = f"{statistics.fmean(values):{digits}}"
        if len(values) > 1:
            text += f" ± {statistics.stdev(values):{digits}}"
        return text

    def printed(self) -> str:
        """Return the reported value as text."""
        value = self.recipe.printed
        return MISSING if value is None else f"{value:{decimals(self.recipe.unit, value)}}"


@dataclass(frozen=True)
class PaperTable:
    """The entries of a paper's table that have recipes.

    Attributes:
        title: paper and table.
        entries: all recipes with their runs; one entry for each size of runs.
    """

    title: str
    entries: tuple[Entry, ...]

    @property
    def rows(self) -> list[str]:
        """The names of the rows."""
        return list(dict.fromkeys(entry.recipe.row for entry in self.entries))

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The names of the columns, with their units."""
        recipes = (entry.recipe for entry in self.entries)
        return list(dict.fromkeys((recipe.column, recipe.unit) for recipe in recipes))

    @property
    def averages(self) -> dict[str, tuple[str, str]]:
        """Row -> reported and reproduced average. The second is "" if a run is missing."""
        first = self.entries[0].recipe
        averages = printed_averages(first.paper, first.table)
        return {
            row: (f"{averages[row].printed:.2f}", self._average(row, averages[row]))
            for row in self.rows
            if row in averages
        }

    def _average(self, row: str, average: Average) -> str:
        columns = [column for column, _ in self.columns if column not in average.without]
        cells = {column: self.at(row, column) for column in columns}
        entries = {column: entry for column, entry in cells.items() if entry is not None}
        if not all(e.runs and e.values and not e.changed for e in entries.values()):
            return ""
        ours = average.average({c: statistics.fmean(entry.values) for c, entry in entries.items()})
        is_reduced = any(entry.is_reduced for entry in entries.values())
        return f"{ours:.2f}{'*' if is_reduced else ''}"

    @property
    def runs(self) -> list[Entry]:
        """The entries that were run."""
        return [entry for entry in self.entries if entry.runs]

    def at(self, row: str, column: str) -> Entry | None:
        """Return the entry of a cell. Of several entries, return the nearest to the paper's run.

        Finished runs come before stopped runs, then the recipe's data and settings before others,
        then runs from their own weights before runs that started from other weights.
        """
        here = [e for e in self.entries if (e.recipe.row, e.recipe.column) == (row, column)]
        was_run = [entry for entry in here if entry.runs]
        if was_run:
            return max(
                was_run,
                key=lambda e: (bool(e.values), not e.changed, e.started_from is None, *e.share),
            )
        return here[0] if here else None

    def counts(self) -> tuple[int, int, int]:
        """Count the values of the table, those with runs, and those with full runs."""
        names = {entry.recipe.name for entry in self.entries}
        full = {e.recipe.name for e in self.runs if e.values and not (e.is_reduced or e.changed)}
        return len(names), len({entry.recipe.name for entry in self.runs}), len(full)


def paper_tables(found: Found) -> list[PaperTable]:
    """Build all tables, in the order of the recipes."""
    tables: dict[str, list[Entry]] = {}
    for entry in _entries(found):
        tables.setdefault(f"{entry.recipe.paper}: {entry.recipe.table}", []).append(entry)
    return [PaperTable(title, tuple(entries)) for title, entries in tables.items()]


def one_per_seed(runs: Sequence[Reproduction]) -> list[Reproduction]:
    """Return one run per seed. The recipe's precision comes before other precisions."""

    def is_as_recipe(run: Reproduction) -> bool:
        name = run.recipe.name
        own = get_recipe(name).train.precision if name in list_recipes() else None
        return run.recipe.train.precision == own

    by_seed: dict[int, Reproduction] = {}
    for run in sorted(runs, key=is_as_recipe, reverse=True):
        by_seed.setdefault(run.seed, run)
    return [by_seed[seed] for seed in sorted(by_seed)]


def summary_rows(results: Reproduction) -> list[tuple[str, str]]:
    """Return the summary of one run for the terminal: labels and texts."""
    unit, recipe = results.unit, results.recipe
    rows = [
        ("printed", _number(results.printed, unit)),
        ("ours (test)", _number(results.ours, unit)),
        ("ours is of", _CHOICES[recipe.weights]),
        ("last step (test)", _number(results.ours_last, unit)),
        ("best evaluation (test)", _number(results.ours_best, unit)),
        ("difference", _difference(results)),
        *_standard_error(results),
        ("best on validation", _number(results.validation, unit)),
        ("steps", f"{results.steps:,} of the paper's {results.steps_planned:,}"),
        *_reductions(results),
    ]
    if results.steps_per_second is not None:
        rows.append(("steps/s", format_rate(results.steps_per_second)))
    if results.utilisation is not None:
        rows.append(("model FLOP utilisation", f"{100 * results.utilisation.share:.1f} %"))
    waiting = results.seconds.get("data", 0.0)
    working = results.seconds.get("train", 0.0) + waiting
    if working:
        rows.append(("waiting for batches", f"{100 * waiting / working:.1f} % of training"))
    rows += [
        ("parameters", f"{results.parameters:,}"),
        ("wall time", format_duration(results.wall_seconds)),
    ]
    return rows + [("note", note) for note in recipe.notes]


def _reductions(results: Reproduction) -> Iterator[tuple[str, str]]:
    """Yield the rows about differences from the paper's run."""
    recipe = results.recipe
    if recipe.width != 1:
        yield "width", f"{recipe.width:g} of the paper's"
    batch, planned = recipe.train.batch_size, results.batch_size_planned
    if planned is not None and batch != planned:
        yield "batch", f"{batch:,} of the recipe's {planned:,}"
    if recipe.not_comparable:
        yield "no difference", recipe.not_comparable
    if results.is_reduced:
        yield "reduced run", "its number is no reproduction of the printed one"
    if results.started_from is not None:
        yield "started from", str(results.started_from)


def decimals(unit: str, value: float) -> str:
    """Return a format: two decimals for percent and from 10, otherwise four."""
    return ".2f" if unit == "%" or abs(value) >= 10 else ".4f"


def report_entries(found: Found) -> list[dict[str, Any]]:
    """Return the report as JSON values: one for each recipe and size of runs."""
    return [
        {
            "name": entry.recipe.name,
            "table": entry.recipe.table,
            "row": entry.recipe.row,
            "column": entry.recipe.column,
            "printed": entry.recipe.printed,
            "unit": entry.recipe.unit,
            "ours": entry.values,
            "changed": entry.changed if entry.runs else "",
            **_compared(entry.agreement),
            "weights": entry.weights,
            "ours_last": entry.tested_values("last"),
            "ours_best": entry.tested_values("best"),
            "files": [str(path) for path, _ in entry.runs],
        }
        for entry in _entries(found)
    ]


def _compared(found: Agreement | None) -> dict[str, float | None]:
    """Return the difference from the reported value and its standard error for JSON."""
    if found is None:
        return {"difference": None, "standard_error": None}
    return {"difference": found.difference, "standard_error": found.error}


def _entries(found: Found) -> list[Entry]:
    """Return entries in the order of the recipes. Runs without a known recipe come last."""
    groups: dict[str, dict[tuple[Any, ...], list[tuple[Path, Reproduction]]]] = {}
    for path, run in sorted(found, key=lambda one: one[1].seed):
        recipe, train = run.recipe, run.recipe.train
        start = "" if run.started_from is None else run.started_from.blake2b
        reduction = (train.max_steps, run.steps, recipe.width, train.batch_size, start)
        settings = recipe.weights if is_reduced(run) else settings_of(run)
        made_of = (changed_settings(run), data_of(run), settings)
        same = groups.setdefault(recipe.name, {}).setdefault((*reduction, *made_of), [])
        same.append((path, run))
    entries = []
    for name in list_recipes():
        runs = groups.pop(name, {})
        entries += [Entry(get_recipe(name), tuple(same)) for _, same in sorted(runs.items())] or [
            Entry(get_recipe(name))
        ]
    for others in groups.values():
        for _, same in sorted(others.items()):
            entries.append(Entry(same[0][1].recipe, tuple(same)))
    return entries


def _difference(results: Reproduction) -> str:
    """Write the difference with the decimals of the reported number."""
    if results.difference is None or results.printed is None:
        return MISSING
    return f"{results.difference:+{decimals(results.unit, results.printed)}}"


def _standard_error(results: Reproduction) -> list[tuple[str, str]]:
    """Return the row with the standard error of the difference, if an error is known."""
    found = None if results.ours is None else agreement([results])
    if found is None or found.error is None:
        return []
    text = _number(found.error, results.unit)
    note = f"the error of {found.unknown} is unknown" if found.unknown else "of both values"
    return [("standard error", f"{text}, {note}")]


def _number(value: float | None, unit: str) -> str:
    return MISSING if value is None else f"{value:.4g} {unit}" if unit != "%" else f"{value:.2f} %"
