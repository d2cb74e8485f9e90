"""Write the tables of docs/gpu.md from the results of a GPU; no number there is typed.

    python docs/write_gpu.py

The files are in benchmarks/results: the newest of benchmarks/gpu/device_times.py and
layer_times.py, and the two of `rifflemix bench scaling` that the page names:

    <!-- launching: BEFORE.json AFTER.json -->
    <!-- /launching -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rifflemix.text import table_lines

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "benchmarks" / "results"
PAGE = FOLDER / "gpu.md"
_TIMES = re.compile(r"(<!-- device times -->\n).*?(<!-- /device times -->)", flags=re.DOTALL)
_LAYERS = re.compile(r"(<!-- layer times -->\n).*?(<!-- /layer times -->)", flags=re.DOTALL)
_LAUNCHING = re.compile(
    r"(<!-- launching: (\S+) (\S+) -->\n).*?(<!-- /launching -->)", flags=re.DOTALL
)
_PASSES = {"forward": "forward", "forward_backward": "forward and backward"}


def device_times(path: Path) -> str:
    """Every case of a file of device times."""
    result = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    shapes = dict.fromkeys((tuple(row["shape"]), row["dtype"]) for row in result["rows"])
    for shape, dtype in shapes:
        rows = [r for r in result["rows"] if (tuple(r["shape"]), r["dtype"]) == (shape, dtype)]
        cells = [
            [
                row["name"],
                f"{1e6 * row['median']:.1f}",
                f"{row['x_copy']:.2f}",
                "" if row["bandwidth"] is None else f"{100 * row['bandwidth']:.0f} %",
            ]
            for row in rows
            if "median" in row
        ]
        headers = ("", "Microseconds", "x copy", "Share of a copy's bandwidth")
        title = f"**{' x '.join(f'{size:,}' for size in shape)}, {dtype}**"
        parts += [title, "", *table_lines(headers, cells, range(1, 4)), ""]
    return "\n".join([*parts, f"{_machine(result['environment'])}. From {_link(path)}."])


def layer_times(path: Path) -> str:
    """Every layer of a file of layer times, in microseconds and in multiples of softmax."""
    result = json.loads(path.read_text(encoding="utf-8"))
    lengths = list(dict.fromkeys(row["tokens"] for row in result["rows"]))
    names = list(dict.fromkeys(row["name"] for row in result["rows"]))
    found = {(row["name"], row["tokens"]): row for row in result["rows"]}
    columns = [(kind, length) for length in lengths for kind in _PASSES]
    cells = [
        [name, *(_beside_softmax(found[name, length].get(kind)) for kind, length in columns)]
        for name in names
    ]
    headers = ("us (x softmax)", *(f"N={length:,}, {_PASSES[kind]}" for kind, length in columns))
    sizes = f"{result['batch']} sequences, {result['channels']} channels, {result['heads']} heads"
    return "\n".join(
        [
            *table_lines(headers, cells, range(1, len(headers))),
            "",
            f"{sizes}, {result['dtype']}; {_machine(result['environment'])}. From {_link(path)}.",
        ]
    )


def _beside_softmax(timed: Mapping[str, Any] | None) -> str:
    return "" if timed is None else f"{1e6 * timed['median']:.0f} ({timed['x_softmax']:.2f})"


def launching(before: Path, after: Path) -> str:
    """Layers of two files side by side, in milliseconds."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    lengths = new["settings"]["tokens"]
    names = [row["name"] for row in new["rows"] if row["shape"]["tokens"] == lengths[0]]
    parts = []
    for kind, title in _PASSES.items():
        cells = [
            [name, *(f"{_ms(old, name, n, kind)} -> {_ms(new, name, n, kind)}" for n in lengths)]
            for name in names
        ]
        headers = (f"{title}, ms", *(f"N={n:,}" for n in lengths))
        parts += [*table_lines(headers, cells, range(1, len(headers))), ""]
    settings = new["settings"]
    return "\n".join(
        [
            *parts,
            f"{settings['batch']} sequences, {settings['dim']} channels, "
            f"{settings['heads']} heads, {settings['dtype']}; {_machine(new['environment'])}. "
            f"From {_link(before)} and {_link(after)}.",
        ]
    )


def _ms(result: Mapping[str, Any], name: str, tokens: int, kind: str) -> str:
    (row,) = (
        row
        for row in result["rows"]
        if row["name"] == name and row["shape"]["tokens"] == tokens and row["kind"] != "peer"
    )
    return f"{1e3 * row['passes'][kind]['p50']:.3g}"


def _machine(environment: Mapping[str, Any]) -> str:
    libraries = environment["libraries"]
    return (
        f"{environment['hardware']['gpu']}, torch {libraries['torch']}, Triton "
        f"{libraries['triton']}, {environment['time'][:10]}"
    )


def _link(path: Path) -> str:
    return f"[{path.name}](../{path.relative_to(FOLDER.parent)})"


def filled(text: str) -> str:
    """The page with its tables written anew."""
    times = sorted(RESULTS.glob("device-times-*.json"))[-1]
    graphs = sorted(RESULTS.glob("layer-times-*.json"))[-1]

    def layers(match: re.Match[str]) -> str:
        start, before, after, end = match.groups()
        return f"{start}\n{launching(RESULTS / before, RESULTS / after)}\n\n{end}"

    text = _TIMES.sub(lambda match: f"{match[1]}\n{device_times(times)}\n\n{match[2]}", text)
    text = _LAYERS.sub(lambda match: f"{match[1]}\n{layer_times(graphs)}\n\n{match[2]}", text)
    return _LAUNCHING.sub(layers, text)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
