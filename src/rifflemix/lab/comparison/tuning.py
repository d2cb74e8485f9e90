"""What every mixer tried, what validation chose, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rifflemix.checks import is_number
from rifflemix.lab.comparison.scores import Score
from rifflemix.lab.report.units import MISSING, format_duration, metric_title
from rifflemix.text import bold, markdown_text, table_lines

HOW_TO_READ = (
    "Bold is what validation chose: most seeds that did not diverge, then the best mean. Every "
    "mixer had the same trials and seeds; none but the chosen saw the test split. The time is that "
    "of all trials."
)
_WORDS = {"lr": "learning rate"}


def tuned_settings(results: Mapping[str, Any]) -> str:
    """The words for what was tuned, such as "learning rate"."""
    return " and ".join(_WORDS.get(name, name) for name in results["tuning"]["grid"])


def tuning_headers(results: Mapping[str, Any]) -> list[str]:
    """Column titles of the table of trials."""
    if "tuning" not in results:
        return []
    tried = results["mixers"][0]["tuning"]["tried"]
    return ["Mixer", *(settings_text(entry["settings"]) for entry in tried), "Time"]


def tuning_cells(results: Mapping[str, Any]) -> list[list[tuple[str, bool]]]:
    """The table's rows: texts, and whether it is the one that was chosen."""
    return [_row(mixer, results) for mixer in results["mixers"] if "tuning" in mixer]


def markdown_tuning(results: Mapping[str, Any]) -> str:
    """A part of table.md; empty where nothing was tuned."""
    headers = tuning_headers(results)
    if not headers:
        return ""
    rows = (
        [bold(text) if is_chosen else text for text, is_chosen in cells]
        for cells in tuning_cells(results)
    )
    table = table_lines(headers, rows, range(1, len(headers)))
    lines = ["", f"## {markdown_text(tuning_title(results))}", "", *table, "", HOW_TO_READ, ""]
    return "\n".join(lines)


def tuning_title(results: Mapping[str, Any]) -> str:
    """The heading of the table of trials."""
    return f"Tuning: validation {metric_title(_metric(results))}"


def tuning_notes(results: Mapping[str, Any]) -> Iterator[str]:
    """How it was tuned, and for whom the best value may lie outside of what was tried."""
    tuning = results["tuning"]
    metric = _metric(results).replace("_", " ")
    tried = len(results["mixers"][0]["tuning"]["tried"])
    yield (
        f"Tuned: {tuned_settings(results)}. Every mixer had the same {tried} values, each with "
        f"every seed ({tuning['trials_planned']} trials in all); the best mean validation {metric} "
        "chose, and only what it chose saw the test split."
    )
    edges = [
        f"{mixer['title']} ({settings_text(mixer['tuning']['chosen'])})"
        for mixer in results["mixers"]
        if mixer["tuning"]["chosen"] is not None
        and _is_at_an_edge(mixer["tuning"]["chosen"], tuning)
    ]
    if edges:
        yield f"Chosen at an end of what was tried, so that more may be better: {', '.join(edges)}."


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in a cell, such as "lr 0.003"."""
    return ", ".join(f"{name} {_value(value)}" for name, value in settings.items())


def _is_at_an_edge(chosen: Mapping[str, Any], tuning: Mapping[str, Any]) -> bool:
    return any(
        value in (min(values), max(values))
        for name, value in chosen.items()
        if len(values := [v for v in tuning["grid"][name] if is_number(v)]) > 1
    )


def _metric(results: Mapping[str, Any]) -> str:
    return str(results["protocol"].get("metric", "accuracy"))


def _row(mixer: Mapping[str, Any], results: Mapping[str, Any]) -> list[tuple[str, bool]]:
    tuning = mixer["tuning"]
    metric = _metric(results)
    cells = [
        (_score(entry, metric), entry["settings"] == tuning["chosen"]) for entry in tuning["tried"]
    ]
    return [(mixer["title"], False), *cells, (format_duration(tuning["wall_seconds"]), False)]


def _score(entry: Mapping[str, Any], metric: str) -> str:
    summary, diverged = entry["validation"], entry["diverged"]
    parts = (
        []
        if summary is None
        else [str(Score(summary["mean"], summary["std"], summary["n"], metric))]
    )
    if diverged:
        parts.append(f"{diverged} diverged")
    return ", ".join(parts) or MISSING


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
