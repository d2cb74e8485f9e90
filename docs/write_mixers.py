"""Write the blocks of docs/mixers/*.md and docs/choose.md from the registry and the results.

Between a pair of comments stands what the cards or the newest result files say:

    <!-- card: csp, softmax -->           what each is, costs and can do
    <!-- measured: csp -->                time and memory beside softmax attention, and the demo
    <!-- choose -->                       all headline mixers in one table

No number there is typed. After a benchmark, or a change of a card:

    python docs/write_mixers.py
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rifflemix.lab.bench.read import read_result
from rifflemix.lab.bench.tables import crossover_text
from rifflemix.lab.comparison.table import Row, comparison_rows
from rifflemix.mixers import HEADLINE
from rifflemix.mixers.catalogue import mixer_entries
from rifflemix.text import code, table_lines

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "benchmarks" / "results"
PAGES = (FOLDER / "choose.md", *sorted((FOLDER / "mixers").glob("*.md")))
SHOWN_AT = 4096
_BLOCK = re.compile(r"(<!-- (card|measured|choose)(?:: ([\w, ]+))? -->\n).*?(<!-- /\2 -->)", re.S)
_PASSES = ("forward", "forward_backward")


def filled(page: Path, text: str) -> str:
    """The text of a page with every block written anew."""

    def block(match: re.Match[str]) -> str:
        start, kind, names, end = match.groups()
        body = _WRITERS[kind](page, (names or "").replace(" ", "").split(","))
        return f"{start}\n{body}\n{end}"

    return _BLOCK.sub(block, text)


def _card(page: Path, names: Iterable[str]) -> str:
    """One column a mixer."""
    entries = {entry["name"]: entry for entry in mixer_entries()}
    chosen = [entries[name] for name in names]
    at = chosen[0]["parameters_at"]
    size = f"C = {at['dim']}, {at['num_heads']} heads, at most {at['max_length']} tokens"
    lines = {
        "what it is": [entry["title"] for entry in chosen],
        "paper": [entry["paper"] for entry in chosen],
        "equations": [entry["equations"] for entry in chosen],
        "cost of the mixing": [entry["complexity"] for entry in chosen],
        "causal": [_yes(entry["causal"]) for entry in chosen],
        "token by token": [_yes(entry["streaming"]) for entry in chosen],
        "padding masks": [_yes(entry["padding"]) for entry in chosen],
        "padding before or between tokens": [_place_of_padding(entry) for entry in chosen],
        "packed sequences": [_yes(entry["packed"]) for entry in chosen],
        "outputs of permuted tokens": [_if_permuted(entry) for entry in chosen],
        f"parameters ({size})": [f"{entry['parameters']:,}" for entry in chosen],
    }
    headers = ["", *(code(entry["name"]) for entry in chosen)]
    return "\n".join(table_lines(headers, ([key, *cells] for key, cells in lines.items()))) + "\n"


def _if_permuted(entry: dict[str, Any]) -> str:
    """Say what permuting the tokens does to the outputs, by the card."""
    if entry["permutation_invariant"]:
        return "unchanged"
    return "permuted in the same way" if entry["permutation_equivariant"] else "different"


def _place_of_padding(entry: dict[str, Any]) -> str:
    if not entry["by_position"]:
        return "as if alone"
    form = "two-sided: " if entry["causal"] else ""
    return f"{form}changes the result, since {entry['by_position']}"


def _measured(page: Path, names: Iterable[str]) -> str:
    """How many times softmax attention's time and memory a layer takes, at every N."""
    path, result = newest_scaling()
    (name,) = names
    passes = passes_by_tokens(result, name)
    rows = [
        [f"{tokens:,}", *_ratios(at, passes_by_tokens(result, "softmax").get(tokens))]
        for tokens, at in passes.items()
    ]
    headers = ["tokens N", "forward, ms", "training, ms", "training memory, MiB"]
    setting = result["settings"]
    lines = [
        f"One layer of {setting['dim']} channels and {setting['heads']} heads on a CPU; in "
        "brackets, the ratio to softmax attention:",
        "",
        *table_lines(headers, rows, range(4)),
        "",
        *_crossovers(result, name),
        f"From {_cited(page, path)}.",
    ]
    return "\n".join([*lines, *_in_demo(page, name)]) + "\n"


def _crossovers(result: Mapping[str, Any], name: str) -> list[str]:
    """From which N on a layer is faster; softmax attention itself has none."""
    if name == "softmax":
        return []
    return [
        f"Crossover with softmax attention: forward at N = {crossover(result, name, 'forward')}, "
        f"training at N = {crossover(result, name, 'forward_backward')}."
    ]


def _in_demo(page: Path, name: str) -> list[str]:
    """The demo's sentence about a mixer that took part in it."""
    path, rows = _demo()
    if name not in rows or name == "softmax":
        return []
    ours, softmax = rows[name], rows["softmax"]
    return [
        "",
        f"In the demo, with the same budget for all: test accuracy {ours.test} %, softmax "
        f"attention {softmax.test} %; {ours.parameters:,} and {softmax.parameters:,} parameters. "
        f"From {_cited(page, path)}.",
    ]


def _choose(page: Path, _: Iterable[str]) -> str:
    path, result = newest_scaling()
    demo_path, demo = _demo()
    entries = {entry["name"]: entry for entry in mixer_entries()}
    rows = []
    for name in HEADLINE:
        ratios = _ratios(
            passes_by_tokens(result, name)[SHOWN_AT], passes_by_tokens(result, "softmax")[SHOWN_AT]
        )
        accuracy = str(demo[name].test) if name in demo else ""
        rows.append(
            [
                code(name),
                _yes(entries[name]["causal"]),
                _yes(entries[name]["streaming"]),
                crossover(result, name, "forward_backward"),
                *(ratio.partition(" (")[2].rstrip(")") for ratio in ratios),
                accuracy,
            ]
        )
    at = f"at N = {SHOWN_AT:,}"
    headers = [
        "mixer", "causal", "token by token", "trains faster from N =", f"forward {at}",
        f"training {at}", f"training memory {at}", "demo's accuracy, %",
    ]  # fmt: skip
    source = (
        "Times and memory are multiples of softmax attention's; "
        f"from {_cited(page, path)} (a CPU) and {_cited(page, demo_path)}."
    )
    return "\n".join([*table_lines(headers, rows, range(3, 8)), "", source]) + "\n"


@functools.cache
def newest_scaling() -> tuple[Path, dict[str, Any]]:
    path = pages_writer().newest(RESULTS, "scaling", "cpu", "float32")
    return path, read_result(path)


@functools.cache
def _demo() -> tuple[Path, Mapping[str, Row]]:
    folder = RESULTS / "demo"
    path = pages_writer().by_time(folder.glob("*.json"))[-1]
    result = json.loads(path.read_text(encoding="utf-8"))
    return path, {row.name: row for row in comparison_rows(result)}


@functools.cache
def pages_writer() -> ModuleType:
    """benchmarks/write_pages.py, which knows which results are the newest."""
    path = FOLDER.parent / "benchmarks" / "write_pages.py"
    spec = importlib.util.spec_from_file_location("write_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def passes_by_tokens(result: Mapping[str, Any], name: str) -> dict[int, Any]:
    """Tokens -> passes of our layer of that name, where it was timed."""
    return {
        row["shape"]["tokens"]: row["passes"]
        for row in result["rows"]
        if (row["kind"], row["name"], row["status"]) == ("layer", name, "measured")
    }


def _ratios(passes: Mapping[str, Any], softmax: Mapping[str, Any] | None) -> list[str]:
    """Forward and training in ms, memory of training in MiB, each with its ratio to softmax."""
    measures = [(kind, "p50", 1e3) for kind in _PASSES]
    measures.append(("forward_backward", "peak_memory_bytes", 1 / 2**20))
    cells = []
    for kind, what, unit in measures:
        ours = passes[kind][what]
        times = f" ({ours / softmax[kind][what]:.2g}x)" if softmax else " (softmax took too long)"
        cells.append(f"{ours * unit:,.1f}{times}")
    return cells


def crossover(result: Mapping[str, Any], name: str, kind: str) -> str:
    """From which N on a layer is faster than softmax attention."""
    for entry in result["growth"]:
        if (entry["kind"], entry["name"], entry["pass"]) == ("layer", name, kind):
            return "" if name == "softmax" else crossover_text(entry["crossover"])
    raise KeyError(name)


def _cited(page: Path, path: Path) -> str:
    return f"[{path.name}]({os.path.relpath(path, page.parent).replace(os.sep, '/')})"


def _yes(can: bool) -> str:
    return "yes" if can else "no"


_WRITERS = {"card": _card, "measured": _measured, "choose": _choose}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page, page.read_text(encoding="utf-8")), encoding="utf-8")
