"""Sections on reproductions: reported values, and mixers of all papers on ListOps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from common import Section, listed
from store import Result, load, names, newest

from rifflemix.lab.recipes import get_recipe, list_recipes
from rifflemix.lab.reproduction.agreement import (
    OTHER_DATA,
    changed_settings,
    count_test_samples,
    standard_error,
)
from rifflemix.lab.reproduction.records import Reproduction, decode_reproduction
from rifflemix.lab.reproduction.tables import Entry
from rifflemix.mixers.registry import mixer_card
from rifflemix.text import Markdown, code, table_lines

_LISTOPS = "dimension_mixer/table5-listops-"


def entries_of(runs: Sequence[Reproduction]) -> list[Entry]:
    """Group the longest runs by recipe, data and settings, from runs in the order of `_key`."""
    found = []
    for group in (list(group) for _, group in groupby(runs, _key)):
        longest = [run for run in group if run.steps == max(one.steps for one in group)]
        found.append(Entry(longest[0].recipe, tuple((Path(), run) for run in longest)))
    return found


def _key(record: Reproduction) -> tuple[str, str]:
    return record.recipe.name, changed_settings(record)


def mean_of(entry: Entry) -> Reproduction:
    """Return the first run with the mean value; without a reported value if settings changed."""
    first = entry.finished[0]
    printed = None if entry.changed else first.printed
    return replace(first, ours=statistics.fmean(entry.values), printed=printed)


def _stored(
    pattern: str, is_used: Callable[[Reproduction], bool]
) -> tuple[list[Result], list[Entry], list[str]]:
    """Return the results that are used, their entries, and the commands of the runs."""
    found = {name: load(name) for name in sorted(names(pattern))}
    runs = {name: decode_reproduction(result.content) for name, result in found.items()}
    runs = {name: run for name, run in runs.items() if is_used(run)}
    by_recipe = sorted(runs.values(), key=_key)
    return [found[name] for name in runs], entries_of(by_recipe), [run.command for run in by_recipe]


def printed() -> Section:
    """Compare the runs with the papers' tables."""
    results, entries, commands = _stored(
        "reproduce/*", lambda run: run.printed is not None and not run.recipe.not_comparable
    )
    shown = [entry for entry in entries if entry.agreement and not mean_of(entry).is_reduced]
    return Section(
        "Reproduced values",
        _summary(entries),
        "printed",
        list(map(_csv_line, entries)),
        results,
        commands=commands,
        below=_table(shown),
    )


def _summary(entries: Sequence[Entry]) -> str:
    numbers = sum(get_recipe(name).printed is not None for name in list_recipes())
    whole = [entry for entry in entries if not mean_of(entry).is_reduced]
    full = {entry.recipe.name: entry.agreement for entry in whole if not entry.changed}
    near = sum(not found.is_beyond for found in full.values())
    one_sided = [f"`{name}`" for name, found in full.items() if found.unknown]
    begun = len({entry.recipe.name for entry in entries})
    text = (
        f"Of {len(full)} comparable results, {near} are within two standard errors of the reported "
        f"number. {numbers} recipes have a reported number; {begun} of them were run. "
        f"{_counted(whole)}"
        f"{f'Only one error is known of {listed(one_sided)}.' if one_sided else ''}"
    )
    return text.rstrip()


def _counted(whole: Sequence[Entry]) -> str:
    """Count the rows in full, and those that have other data or settings than their recipe."""
    changes = [entry.changed for entry in whole if entry.changed]
    if not changes:
        return f"{len(whole)} were run in full. "
    data = changes.count(OTHER_DATA)
    reasons = [
        f"{count} used other {what} than the recipe has now"
        for count, what in ((data, "data"), (len(changes) - data, "settings"))
        if count
    ]
    return (
        f"{len(whole)} were run in full: {len(whole) - len(changes)} are comparable, "
        f"{listed(reasons)}. "
    )


def _csv_line(entry: Entry) -> dict[str, Any]:
    """Return a line of the CSV file; a reduced or changed run has no errors."""
    found, mean = entry.agreement, mean_of(entry)
    return {
        "recipe": entry.recipe.name, "printed": mean.printed, "ours": mean.ours, "unit": mean.unit,
        "steps": mean.steps, "steps_planned": mean.steps_planned, "is_reduced": mean.is_reduced,
        "changed": entry.changed, "seeds": " ".join(str(run.seed) for run in entry.finished),
        "test_samples": found and count_test_samples(mean),
        "standard_error": found and found.reproduced_error,
        "standard_error_printed": found and found.reported_error,
    }  # fmt: skip


def _table(entries: Sequence[Entry]) -> str:
    """Write a table of the comparable rows."""
    headers = ("Recipe", "Reported", "Reproduced", "Difference", "Standard error of both", "Seeds",
               "Seeds that learned nothing")  # fmt: skip
    cells = []
    for entry in entries:
        found, mean, count = entry.agreement, mean_of(entry), len(entry.finished)
        each = listed([f"{ours:.2f}" for ours in entry.values])
        cells.append([
            Markdown(code(entry.recipe.name)),
            f"{mean.printed:.2f}",
            f"{mean.ours:.2f}" + (f" ({each})" if count > 1 else ""),
            f"{found.difference:+.2f}",
            "" if found.error is None else f"{found.error:.2f}",
            str(count),
            listed([str(run.seed) for run in entry.finished if learned_from(run) is None]),
        ])  # fmt: skip
    return "\n".join(table_lines(headers, cells, range(1, len(headers) - 1)))


def learned_from(run: Reproduction) -> int | None:
    """Return the step at which validation accuracy exceeds the noise of its first value."""
    sizes = run.task.sizes or {}
    size = sizes.get("validation", run.task.options.get("num_validation"))
    first = run.result.validation[0]["accuracy"]
    return _left_at(run, first + 4 * math.sqrt(first * (1 - first) / size))


def _left_at(run: Reproduction, above: float) -> int | None:
    """Return the step of the first evaluation above an accuracy, or None."""
    return next((p["step"] for p in run.result.validation if p["accuracy"] > above), None)


def listops() -> Section:
    """Compare full runs of mixers in the model of Dimension Mixer's Table 5."""
    results, entries, commands = _stored(
        f"reproduce/{_LISTOPS.replace('/', '-')}*", lambda run: not run.is_reduced
    )
    entries = sorted(entries, key=lambda entry: -mean_of(entry).ours)
    above = float(newest("plateau-*").content["left_above"])
    table, cells, starts_of = [], [], {}
    for entry in entries:
        mean, error = mean_of(entry), _error(entry)
        seeds = starts_of[_mixer(entry)] = [_left_at(run, above) for run in entry.finished]
        table.append({
            "recipe": entry.recipe.name,
            "mixer": _mixer_name(entry),
            "ours": mean.ours,
            "standard_error": error,
            "printed": mean.printed,
            "seeds": " ".join(str(run.seed) for run in entry.finished),
            "parameters": mean.parameters,
            "learned_from_step": " ".join(str(start or "never") for start in seeds),
            "made_on": _made_on(entry),
        })  # fmt: skip
        cells.append([
            _mixer(entry, mixer_card(_mixer_name(entry)).title),
            f"{mean.ours:.2f} ± {error:.2f}",
            "" if mean.printed is None else f"{mean.printed:.2f}",
            len(entry.finished),
            f"{mean.parameters:,}",
            _made_on(entry),
        ])  # fmt: skip
    headers = (
        "Mixer",
        "Reproduced ± standard error, %",
        "Reported, %",
        "Seeds",
        "Parameters",
        "Hardware",
    )
    return Section(
        "ListOps of full length",
        _what_listops_shows(entries, starts_of),
        "host",
        table,
        results,
        commands=commands,
        below="\n".join(table_lines(headers, cells, range(1, len(headers) - 1))),
    )


def _what_listops_shows(
    entries: Sequence[Entry], starts_of: Mapping[str, Sequence[int | None]]
) -> str:
    """Name the mixers that beat the majority-class baseline, or only with some seeds."""
    idle = [mixer for mixer, of in starts_of.items() if not any(of)]
    partly = [
        f"{mixer} in {sum(map(bool, of))} of {len(of)}"
        for mixer, of in starts_of.items()
        if any(of) and not all(of)
    ]
    nothing = [
        f"{listed(idle) or 'no mixer'} learned nothing",
        *([f"Some seeds learned: {listed(partly)}"] if partly else []),
    ]
    train = entries[0].recipe.train
    return (
        f"By validation accuracy, {'. '.join(nothing)}. ListOps has up to 2,000 tokens. The "
        f"model of Dimension Mixer's Table 5 was trained for {train.max_steps:,} steps of "
        f"{train.batch_size} samples."
    )


def _mixer_name(entry: Entry) -> str:
    return str(entry.recipe.model_settings["mixer"])


def _mixer(entry: Entry, title: str = "") -> str:
    """Return the mixer, and the row of the paper if it has another name than the mixer."""
    name = _mixer_name(entry)
    own = entry.recipe.name.removeprefix(_LISTOPS) == name
    return (title or name) + ("" if own else f", as {entry.recipe.row.rstrip('.')}")


def _made_on(entry: Entry) -> str:
    """Return the machines and precisions of a row's seeds."""
    machines = {}
    for run in entry.finished:
        precision = run.result.precision
        gpu = run.environment.hardware.gpu
        machines[f"{gpu or 'CPU'}, {'float32' if precision == 'no' else precision}"] = None
    return "; ".join(machines)


def _error(entry: Entry) -> float:
    """Return the standard error of a mean: of test samples or of seeds, the larger of both."""
    samples, each = standard_error(mean_of(entry)) or 0.0, entry.values
    seeds = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    return max(samples, seeds)
