"""The table of models: description, parameter count, and the count reported in the paper."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from rifflemix.errors import InputError
from rifflemix.models import create_model, model_card, usable_models

_MILLION = " M"


def model_entries() -> list[dict[str, Any]]:
    """Return an entry for each registered model: its card, `parameters` and `difference`.

    `parameters` is None if the model cannot be built without choosing a size first. `difference` is
    our count minus the reported count, rounded to the digits of the paper. It is empty if the paper
    reports no count.
    """
    entries = []
    for name in usable_models():
        card, parameters = model_card(name), count_parameters(name)
        difference = "" if parameters is None else difference_to(card.printed, parameters)
        entries.append(asdict(card) | {"parameters": parameters, "difference": difference})
    return entries


def count_parameters(name: str, **overrides: Any) -> int | None:
    """Count the parameters of a model; None if a setting is missing.

    The model is built on the meta device and needs no memory.
    """
    try:
        with torch.device("meta"):
            return create_model(name, **overrides).num_parameters()
    except InputError:
        return None


def difference_to(printed: str, parameters: int) -> str:
    """Format our count minus the reported count: "0", "+12", "-0.04 M".

    The difference is rounded to the digits of the reported count.
    """
    if not printed:
        return ""
    if not printed.endswith(_MILLION):
        return _signed(parameters - int(printed), 0)
    number = printed.removesuffix(_MILLION)
    digits = len(number.partition(".")[2])
    text = _signed(round(parameters / 1e6, digits) - float(number), digits)
    return text if text == "0" else text + _MILLION


def models_markdown() -> str:
    """Format the table as Markdown, followed by the notes."""
    entries = model_entries()
    lines = [
        "| name | what it is | parameters | printed | difference |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    notes: list[str] = []
    for entry in entries:
        mark = ""
        if entry["note"]:
            notes.append(f"{len(notes) + 1}. `{entry['name']}`: {entry['note']}")
            mark = f" ({len(notes)})"
        cells = (f"`{entry['name']}`{mark}", _what(entry), *_counts(entry))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n" + "\n".join(notes) + ("\n" if notes else "")


def _what(entry: dict[str, Any]) -> str:
    paper = entry["paper"].split(",")[0]
    return f"{entry['title']} ({paper})"


def _counts(entry: dict[str, Any]) -> tuple[str, str, str]:
    parameters = entry["parameters"]
    printed = entry["printed"]
    if printed:
        number = printed if printed.endswith(_MILLION) else f"{int(printed):,}"
        printed = f"{number}, {entry['printed_in']}"
    count = "by its settings" if parameters is None else f"{parameters:,}"
    return count, printed, entry["difference"]


def _signed(value: float, digits: int) -> str:
    text = f"{value:+,.{digits}f}"
    return "0" if float(text.replace(",", "")) == 0 else text
