"""Blocks about mixers and models: cards, options, notes, and measurements next to softmax."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from common import DOCS, cite, link, listed, newest_benchmark, passes_by_tokens

from rifflemix.lab.bench.tables import crossover_text
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.registry import mixer_class, mixer_entries, mixer_options
from rifflemix.models.registry import model_entries
from rifflemix.text import Markdown, code, table_lines

_YES = {True: "yes", False: "no"}


def card(_: Path, names: Iterable[str]) -> str:
    """Write the cards of mixers, one column per mixer: NAME, ..."""
    entries = {entry["name"]: entry for entry in mixer_entries()}
    chosen = [entries[name] for name in names]
    lines = {
        "paper": [entry["paper"] for entry in chosen],
        "cost of the mixing": [entry["complexity"] for entry in chosen],
        "causal": [_YES[entry["causal"]] for entry in chosen],
        "streaming": [_YES[entry["streaming"]] for entry in chosen],
        "padding masks": [_YES[entry["padding"]] for entry in chosen],
        "padding before or between tokens": [_place_of_padding(entry) for entry in chosen],
        "packed sequences": [_YES[entry["packed"]] for entry in chosen],
        "outputs of permuted tokens": [_if_permuted(entry) for entry in chosen],
    }
    headers = ["", *(code(entry["name"]) for entry in chosen)]
    return "\n".join(table_lines(headers, ([key, *cells] for key, cells in lines.items())))


def options(_: Path, names: Iterable[str]) -> str:
    """Write a table of all options of each mixer: NAME, ..."""
    parts = []
    for name in names:
        cls = mixer_class(name)
        classes = [cls, *([cls.causal_class] if cls.causal_class else [])]
        bases = [base for of in classes for base in of.__mro__[: of.__mro__.index(TokenMixer)]]
        meanings: dict[str, str] = {}
        for base in reversed(bases):
            meanings |= _meanings(inspect.cleandoc(base.__doc__ or ""))
        rows = [
            [Markdown(code(key)), Markdown(code(repr(value))), Markdown(meanings.get(key, ""))]
            for key, value in mixer_options(name).items()
        ]
        lines = table_lines([f"option of {name}", "default", "meaning"], rows)
        parts.append("\n".join(lines))
    shared = list(inspect.signature(TokenMixer.__init__).parameters)[2:]
    return "\n\n".join([*parts, f"All mixers also accept {listed(list(map(code, shared)))}."])


def _meanings(doc: str) -> dict[str, str]:
    """Return the descriptions in the Args section of a docstring, by name."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", doc, re.MULTILINE | re.DOTALL)
    found = re.finditer(r"^    (\w+): (.*?)(?=^    \S|\Z)", section[1] if section else "",
                        re.MULTILINE | re.DOTALL)  # fmt: skip
    return {match[1]: " ".join(match[2].split()) for match in found}


def _if_permuted(entry: Mapping[str, Any]) -> str:
    if entry["permutation_invariant"]:
        return "unchanged"
    return "permuted in the same way" if entry["permutation_equivariant"] else "different"


def _place_of_padding(entry: Mapping[str, Any]) -> str:
    if not entry["by_position"]:
        return "as if alone"
    form = "bidirectional: " if entry["causal"] else ""
    return f"{form}changes the result, since {entry['by_position']}"


def measured(page: Path, names: list[str]) -> str:
    """Write the time and memory of a layer at every length: NAME."""
    (name,) = names
    result = newest_benchmark("scaling")
    content = result.content
    softmax, settings = passes_by_tokens(content, "softmax"), content["settings"]
    rows = [
        [f"{tokens:,}", *_ratios(passes, softmax.get(tokens))]
        for tokens, passes in passes_by_tokens(content, name).items()
    ]
    headers = ["tokens N", "forward, ms", "training, ms", "training memory, MiB"]
    crossovers = {
        entry["pass"]: crossover_text(entry["crossover"])
        for entry in content["growth"]
        if (entry["kind"], entry["name"]) == ("layer", name) and name != "softmax"
    }
    crossing = (
        "Crossover with softmax attention: forward at N = {forward}, training at N = "
        "{forward_backward}.\n"
    )
    return (
        f"One `{name}` layer of {settings['dim']} channels and {settings['heads']} heads on a CPU. "
        "In brackets: time or memory relative to softmax attention (lower is better).\n\n"
        + "\n".join(table_lines(headers, rows, range(4)))
        + f"\n\n{crossing.format(**crossovers) if crossovers else ''}From {cite(page, result)}. "
        f"[Speed and memory]({link(page, DOCS / 'performance.md')}) has times on GPUs."
    )


def _ratios(passes: Mapping[str, Any], softmax: Mapping[str, Any] | None) -> list[str]:
    """Format forward and training time and training memory, each with its ratio to softmax."""
    cells = []
    for kind, key, unit in (
        ("forward", "p50", 1e3),
        ("forward_backward", "p50", 1e3),
        ("forward_backward", "peak_memory_bytes", 1 / 2**20),
    ):
        ours = passes[kind][key]
        ratio = f" ({ours / softmax[kind][key]:.2g}x)" if softmax else " (no softmax)"
        cells.append(f"{ours * unit:,.1f}{ratio}")
    return cells


_MODEL_HEADERS = ("name", "model", "paper", "parameters", "reported", "difference")


def models(*_: object) -> str:
    """Write a table of models for each kind of input, and a table of notes."""
    by_inputs: dict[str, list[dict[str, Any]]] = {}
    for entry in model_entries():
        by_inputs.setdefault(entry["inputs"], []).append(entry)
    lines = []
    for inputs, found in by_inputs.items():
        table = table_lines(_MODEL_HEADERS, map(_model_cells, found), range(3, 6))
        lines += [f"## Models for {inputs}", "", *table, ""]
    noted = [entry for entry in chain(*by_inputs.values()) if entry["note"]]
    notes = [
        (Markdown(", ".join(code(entry["name"]) for entry in found)), note)
        for note, found in groupby(noted, itemgetter("note"))
    ]
    return "\n".join([*lines, "## Notes", "", *table_lines(("models", "note"), notes)])


def _model_cells(entry: Mapping[str, Any]) -> list[str]:
    count, reported = entry["parameters"], entry["printed"]
    return [
        code(entry["name"]),
        Markdown(entry["title"]),
        entry["paper"].split(",")[0],
        "depends on its settings" if count is None else f"{count:,}",
        f"{reported}, {entry['printed_in']}" if reported else "",
        entry["difference"],
    ]


WRITERS = {"card": card, "options": options, "measured": measured, "models": models}
