"""Tables of all mixers: properties, limitations and parameter counts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rifflemix.mixers import create_mixer, mixer_card, usable_mixers
from rifflemix.text import code, table_lines

_DIM, _HEADS, _LENGTH = 256, 8, 256
_COLUMNS = (
    "name", "what it is", "paper", "cost", "causal", "streaming", "packed", "export", "ONNX",
    "parameters",
)  # fmt: skip


def mixer_entries() -> list[dict[str, Any]]:
    """List the card and the parameter count of every registered mixer.

    The count is for one layer with the settings in `parameters_at`.
    """
    return [_entry(name) for name in usable_mixers()]


def mixers_markdown() -> str:
    """Format the table of mixers as Markdown."""
    rows = [
        (
            code(entry["name"]),
            entry["title"],
            entry["paper"],
            entry["complexity"],
            "yes" if entry["causal"] else "",
            "yes" if entry["streaming"] else "",
            "yes" if entry["packed"] else "",
            "one length" if entry["one_length"] else "yes",
            "" if entry["no_onnx"] else "yes",
            f"{entry['parameters']:,}",
        )
        for entry in mixer_entries()
    ]
    return "\n".join(table_lines(_COLUMNS, rows, range(9, 10))) + "\n"


def exports_markdown() -> str:
    """Format a Markdown table of mixers with limited export, with reasons."""
    rows = [
        (code(name), what, why)
        for name in usable_mixers()
        for card in [mixer_card(name)]
        for what, why in (("one length", card.one_length), ("no ONNX", card.no_onnx))
        if why
    ]
    return "\n".join(table_lines(("mixer", "", "why"), rows)) + "\n"


def _entry(name: str) -> dict[str, Any]:
    mixer = create_mixer(name, _DIM, num_heads=_HEADS, max_length=_LENGTH)
    return asdict(mixer_card(name)) | {
        "parameters": sum(parameter.numel() for parameter in mixer.parameters()),
        "parameters_at": {"dim": _DIM, "num_heads": _HEADS, "max_length": _LENGTH},
    }
