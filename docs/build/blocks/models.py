"""Block of docs/models.md: the registered models by kind of input, and notes on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from rifflemix.models.registry import model_entries
from rifflemix.text import Markdown, code, table_lines

_HEADERS = ("name", "model", "paper", "parameters", "reported", "difference")


def models_markdown() -> str:
    """Write a table of models for each kind of input, and a table of notes."""
    by_inputs: dict[str, list[dict[str, Any]]] = {}
    for entry in model_entries():
        by_inputs.setdefault(entry["inputs"], []).append(entry)
    parts = [
        "\n".join(
            [f"## Models for {inputs}", "", *table_lines(_HEADERS, map(_row, found), range(3, 6))]
        )
        for inputs, found in by_inputs.items()
    ]
    notes = table_lines(("models", "note"), _notes(list(chain(*by_inputs.values()))))
    return "\n\n".join([*parts, "\n".join(["## Notes", "", *notes])])


def _row(entry: Mapping[str, Any]) -> Sequence[str]:
    count, reported = entry["parameters"], entry["printed"]
    if reported.isdigit():
        reported = f"{int(reported):,}"
    return (
        code(entry["name"]),
        Markdown(entry["title"]),
        entry["paper"].split(",")[0],
        "depends on its settings" if count is None else f"{count:,}",
        f"{reported}, {entry['printed_in']}" if reported else "",
        entry["difference"],
    )


def _notes(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each note after the names of its models."""
    noted = groupby((entry for entry in entries if entry["note"]), lambda entry: entry["note"])
    return [
        (Markdown(", ".join(code(entry["name"]) for entry in found)), note) for note, found in noted
    ]


WRITERS = {"models": lambda *_: models_markdown()}
