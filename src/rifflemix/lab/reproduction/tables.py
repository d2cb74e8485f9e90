"""Reproductions put together: one run's summary, and all runs as the papers' tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.report.units import MISSING, format_duration, format_rate
from rifflemix.lab.reproduction.agreement import (
    Agreement,
    Result,
    agreement,
    batch_sizes,
    changed_settings,
    data_of,
    is_reduced,
    settings_of,
    shares,
)
from rifflemix.lab.reproduction.averages import Average, printed_averages

_CHOICES = {"last": "the last step", "best": "the best evaluation on validation"}

Found = Sequence[tuple[Path, Result]]


@dataclass(frozen=True)
class Entry:
    """A recipe with the runs that share one reduction of it; no runs: not run yet."""

    recipe: Recipe
    runs: tuple[tuple[Path, Result], ...] = ()

    @property
    def values(self) -> list[float]:
        """Ours of the finished runs, one of each seed."""
        finished = [run for _, run in self.runs if run["ours"] is not None]
        return [run["ours"] for run in one_per_seed(finished)]

    @property
    def weights(self) -> str:
        """The weights whose value counts: "last" or "best"."""
        recipe = self.runs[0][1]["recipe"] if self.runs else {"weights": self.recipe.weights}
        return str(recipe.get("weights", "best"))

    def tested_values(self, weights: str) -> list[float]:
        """Test values of the "last" or the "best" weights, one of each seed, where known."""
        runs = one_per_seed([run for _, run in self.runs])
        values = [_of_best(run) if weights == "best" else run.get("ours_last") for run in runs]
        return [value for value in values if value is not None]

    def tested(self, weights: str) -> str:
        """The mean of `tested_values`; empty if none is known."""
        values = self.tested_values(weights)
        if not values:
            return ""
        return f"{statistics.fmean(values):{decimals(self.recipe.unit, values[0])}}"

    def run_name(self, run: Result) -> str:
        """The seed of a run; its precision too where another run has the same seed."""
        same = [other for _, other in self.runs if other["seed"] == run["seed"]]
        precision = run["recipe"]["train"].get("precision")
        in_what = "float32" if precision == "no" else precision
        return f"seed {run['seed']}" + (f" in {in_what}" if len(same) > 1 else "")

    def median(self, key: str) -> float | None:
        """The median of a number of the runs."""
        numbers = [run[key] for _, run in self.runs if run[key] is not None]
        return statistics.median(numbers) if numbers else None

    @property
    def batch(self) -> tuple[int, int]:
        """Samples per update, and those of the recipe."""
        return batch_sizes(self.runs[0][1])

    @property
    def changed(self) -> str:
        """Other data or other settings than the recipe has now, or an empty string."""
        return changed_settings(self.runs[0][1])

    @property
    def agreement(self) -> Agreement | None:
        """The difference from the reported value, None if the runs cannot be compared with it."""
        finished = one_per_seed([run for _, run in self.runs if run["ours"] is not None])
        return agreement(finished) if finished else None

    @property
    def started_from(self) -> str | None:
        """Whose weights the runs started from; None where they were their own."""
        origin = self.runs[0][1].get("started_from")
        return None if origin is None else _origin(origin)

    @property
    def is_reduced(self) -> bool:
        """Narrower than the paper's model, trained for fewer updates or on smaller batches."""
        return is_reduced(self.runs[0][1])

    @property
    def share(self) -> tuple[float, float, float]:
        """The shares of the paper's run: of its width, of its updates, of its batch."""
        return shares(self.runs[0][1])

    def ours(self) -> str:
        """Mean and deviation over the seeds; of a stopped run the best validation value."""
        values = self.values
        if not values:
            best = self.median("validation")
            return "" if best is None else f"{best:{decimals(self.recipe.unit, best)}} (val.)"
        digits = decimals(self.recipe.unit, values[0])
        text = f"{statistics.fmean(values):{digits}}"
        if len(values) > 1:
            text += f" ± {statistics.stdev(values):{digits}}"
        return text

    def printed(self) -> str:
        """The paper's number."""
        value = self.recipe.printed
        return MISSING if value is None else f"{value:{decimals(self.recipe.unit, value)}}"


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper as far as there are recipes of it.

    Attributes:
        title: paper and table.
        entries: all recipes, each with its runs, one entry for each reduction.
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
        """By row the printed average and ours, "" where not all of the row has finished runs."""
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
        ours = average.of({c: statistics.fmean(entry.values) for c, entry in entries.items()})
        is_reduced = any(entry.is_reduced for entry in entries.values())
        return f"{ours:.2f}{'*' if is_reduced else ''}"

    @property
    def runs(self) -> list[Entry]:
        """The entries that were run."""
        return [entry for entry in self.entries if entry.runs]

    def at(self, row: str, column: str) -> Entry | None:
        """Return the entry of a cell: of several the one that is most of the paper's run.

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
        """Numbers in the table, those that were run, and those run in full as the recipe is."""
        names = {entry.recipe.name for entry in self.entries}
        full = {e.recipe.name for e in self.runs if e.values and not (e.is_reduced or e.changed)}
        return len(names), len({entry.recipe.name for entry in self.runs}), len(full)


def paper_tables(found: Found) -> list[PaperTable]:
    """All tables, in the order of the recipes."""
    tables: dict[str, list[Entry]] = {}
    for entry in _entries(found):
        tables.setdefault(f"{entry.recipe.paper}: {entry.recipe.table}", []).append(entry)
    return [PaperTable(title, tuple(entries)) for title, entries in tables.items()]


def one_per_seed(runs: Sequence[Result]) -> list[Result]:
    """The runs of a recipe by seed; of a seed in several precisions, the recipe's own counts."""

    def is_as_recipe(run: Result) -> bool:
        name = run["recipe"]["name"]
        own = get_recipe(name).train.precision if name in list_recipes() else None
        return bool(run["recipe"]["train"].get("precision") == own)

    by_seed: dict[int, Result] = {}
    for run in sorted(runs, key=is_as_recipe, reverse=True):
        by_seed.setdefault(run["seed"], run)
    return [by_seed[seed] for seed in sorted(by_seed)]


def summary_rows(results: Result) -> list[tuple[str, str]]:
    """The summary of one run for the terminal: labels and texts."""
    unit = results["unit"]
    rows = [
        ("printed", _number(results["printed"], unit)),
        ("ours (test)", _number(results["ours"], unit)),
        ("ours is of", _CHOICES[results["recipe"].get("weights", "best")]),
        ("last step (test)", _number(results.get("ours_last"), unit)),
        ("best evaluation (test)", _number(_of_best(results), unit)),
        ("difference", _difference(results)),
        *_standard_error(results),
        ("best on validation", _number(results["validation"], unit)),
        ("steps", f"{results['steps']:,} of the paper's {results['steps_planned']:,}"),
    ]
    if results["recipe"]["width"] != 1:
        rows.append(("width", f"{results['recipe']['width']:g} of the paper's"))
    batch = results["recipe"]["train"]["batch_size"]
    planned = results.get("batch_size_planned", batch)
    if batch != planned:
        rows.append(("batch", f"{batch:,} of the recipe's {planned:,}"))
    if reason := results["recipe"].get("not_comparable"):
        rows.append(("no difference", reason))
    if results["is_reduced"]:
        rows.append(("reduced run", "its number is no reproduction of the printed one"))
    if results.get("started_from"):
        rows.append(("started from", _origin(results["started_from"])))
    if results["steps_per_second"] is not None:
        rows.append(("steps/s", format_rate(results["steps_per_second"])))
    if results["utilisation"] is not None:
        rows.append(("model FLOP utilisation", f"{100 * results['utilisation']['share']:.1f} %"))
    seconds = results.get("seconds", {})
    working = seconds.get("train", 0.0) + seconds.get("data", 0.0)
    if working:
        rows.append(("waiting for batches", f"{100 * seconds['data'] / working:.1f} % of training"))
    rows += [
        ("parameters", f"{results['parameters']:,}"),
        ("wall time", format_duration(results["wall_seconds"])),
    ]
    return rows + [("note", note) for note in results["recipe"]["notes"]]


def _of_best(results: Result) -> float | None:
    """The test value of the best evaluation's weights; runs of earlier versions chose them."""
    value: float | None = results.get("ours_best", results["ours"])
    return value


def decimals(unit: str, value: float) -> str:
    """Two decimals of shares and of numbers over 10, four of smaller ones."""
    return ".2f" if unit == "%" or abs(value) >= 10 else ".4f"


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
    """The difference from the reported value and its standard error as JSON values."""
    if found is None:
        return {"difference": None, "standard_error": None}
    return {"difference": found.difference, "standard_error": found.error}


def _entries(found: Found) -> list[Entry]:
    """In the order of the recipes, runs by seed; names that are no recipe any more come last."""
    groups: dict[str, dict[tuple[Any, ...], list[tuple[Path, Result]]]] = {}
    for path, run in sorted(found, key=lambda one: one[1]["seed"]):
        recipe = run["recipe"]
        train = recipe["train"]
        start = (run.get("started_from") or {}).get("blake2b", "")
        reduction = (train["max_steps"], run["steps"], recipe["width"], train["batch_size"], start)
        settings = recipe.get("weights", "best") if is_reduced(run) else settings_of(run)
        made_of = (changed_settings(run), data_of(run), settings)
        same = groups.setdefault(recipe["name"], {}).setdefault((*reduction, *made_of), [])
        same.append((path, run))
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


def _difference(results: Result) -> str:
    """Ours minus the printed, with as many decimals as that has."""
    if results["difference"] is None:
        return MISSING
    return f"{results['difference']:+{decimals(results['unit'], results['printed'])}}"


def _standard_error(results: Result) -> list[tuple[str, str]]:
    """The standard error of the difference, in a row of the summary if an error is known."""
    found = None if results["ours"] is None else agreement([results])
    if found is None or found.error is None:
        return []
    text = _number(found.error, results["unit"])
    of = f"the error of {found.unknown} is unknown" if found.unknown else "of both values"
    return [("standard error", f"{text}, {of}")]


def _origin(started_from: Mapping[str, Any]) -> str:
    step = started_from["step"]
    return f"{started_from['recipe']} at step {step:,}" if step else str(started_from["recipe"])


def _number(value: float | None, unit: str) -> str:
    return MISSING if value is None else f"{value:.4g} {unit}" if unit != "%" else f"{value:.2f} %"
