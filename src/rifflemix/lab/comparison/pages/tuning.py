"""The table of tuning trials: settings, validation scores, choice and time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rifflemix.checks import is_number
from rifflemix.lab.comparison.records import MixerTuning, Results, Tried, Tuning
from rifflemix.lab.comparison.statistics import Score
from rifflemix.lab.report.units import MISSING, format_duration, metric_title
from rifflemix.lab.runs.status import Point
from rifflemix.text import bold, markdown_text, table_lines

_HOW_TO_READ = (
    "Bold is what validation chose: most seeds that did not diverge, then the best mean. Every "
    "mixer had the same trials and seeds; none but the chosen saw the test split. The time is that "
    "of all trials."
)
_WORDS = {"lr": "learning rate"}


def tuning_headers(results: Results) -> list[str]:
    """Return the column titles; empty if nothing was tuned."""
    tuning = results.mixers[0].tuning
    if tuning is None:
        return []
    return ["Mixer", *(settings_text(tried.settings) for tried in tuning.tried), "Time"]


def tuning_cells(results: Results) -> list[list[tuple[str, bool]]]:
    """Return the cells of each mixer: text, and whether validation chose these settings."""
    metric = results.protocol.metric
    return [
        _row(mixer.title, mixer.tuning, metric)
        for mixer in results.mixers
        if mixer.tuning is not None
    ]


def markdown_tuning(results: Results) -> str:
    """Write a part of table.md; empty if nothing was tuned."""
    headers = tuning_headers(results)
    if not headers:
        return ""
    rows = (
        [bold(text) if is_chosen else text for text, is_chosen in cells]
        for cells in tuning_cells(results)
    )
    table = table_lines(headers, rows, range(1, len(headers)))
    title = markdown_text(tuning_title(results))
    lines = ["", f"## {title}", "", *table, "", tuning_caption(results), ""]
    return "\n".join(lines)


def tuning_title(results: Results) -> str:
    """Return the heading of the table of trials."""
    return f"Tuning: validation {metric_title(results.protocol.metric)}"


def tuning_caption(results: Results) -> str:
    """Explain the table of trials."""
    if results.tuning is None or results.tuning.early_stops is None:
        return _HOW_TO_READ
    return f"{_HOW_TO_READ} Trials that were stopped early have the score of their last step."


def tuning_notes(results: Results, tuning: Tuning) -> Iterator[str]:
    """Describe the tuning, and the mixers whose best value may lie outside the tried values."""
    metric = results.protocol.metric.replace("_", " ")
    count = math.prod(map(len, tuning.grid.values()))
    tuned = " and ".join(_WORDS.get(name, name) for name in tuning.grid)
    yield (
        f"Tuned: {tuned}. Every mixer had the same {count} values, each with "
        f"every seed ({tuning.trials_planned} trials in all); the best mean validation {metric} "
        "chose, and only what it chose saw the test split."
    )
    if tuning.early_stops is not None:
        rungs = (f"{rung.kept} at step {rung.step:,}" for rung in tuning.early_stops.rungs)
        yield (
            "Trials were stopped early (successive halving). Of the values of each mixer, the best "
            f"continued: {', '.join(rungs)}. Score: {tuning.early_stops.score}."
        )
    edges = [
        f"{mixer.title} ({settings_text(mixer.choice)})"
        for mixer in results.mixers
        if mixer.choice is not None and _is_at_an_edge(mixer.choice, tuning)
    ]
    if edges:
        yield f"Chosen at an end of what was tried, so that more may be better: {', '.join(edges)}."


def settings_text(settings: Point) -> str:
    """Write settings for a cell, such as "lr 0.003"."""
    return ", ".join(f"{name} {_value(value)}" for name, value in settings.items())


def _is_at_an_edge(chosen: Point, tuning: Tuning) -> bool:
    return any(
        value in (min(values), max(values))
        for name, value in chosen.items()
        if len(values := [v for v in tuning.grid[name] if is_number(v)]) > 1
    )


def _row(title: str, tuning: MixerTuning, metric: str) -> list[tuple[str, bool]]:
    cells = [(_score(tried, metric), tried.settings == tuning.chosen) for tried in tuning.tried]
    return [(title, False), *cells, (format_duration(tuning.wall_seconds), False)]


def _score(tried: Tried, metric: str) -> str:
    found = tried.validation
    parts = [] if found is None else [str(Score(found.mean, found.std, found.n, metric))]
    if tried.diverged:
        parts.append(f"{tried.diverged} diverged")
    step = "" if tried.stopped_at is None else f" (step {tried.stopped_at:,})"
    return (", ".join(parts) or MISSING) + step


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
