"""The table of mixers: what each is and can do, and what a layer of it holds."""

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
    """An entry for each registered mixer: its card and the parameters of one layer."""
    return [_entry(name) for name in usable_mixers()]


def mixers_markdown() -> str:
    """The table as Markdown."""
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
    """As Markdown: what is not exported like the others, and why."""
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
