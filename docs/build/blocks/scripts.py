"""Blocks from the scripts in benchmarks/: packed sequences, distillation and longer texts."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from store import newest

from blocks.common import cite
from rifflemix.text import Markdown, code, table_lines

_WAYS = ("packed", "padded", "equal")


def packed(page: Path, _: list[str]) -> str:
    """Write the time of packed batches, and the relative time of padded and equal lengths."""
    result = newest("packed-*")
    content = result.content
    tables = [_packed_table(content, kind) for kind in content["lengths"]]
    source = (
        f"One layer of {content['dim']} channels and {content['heads']} heads on "
        f"{content['hardware']}; from {cite(page, result)}."
    )
    return "\n\n".join([*tables, source])


def _packed_table(content: dict[str, Any], kind: str) -> str:
    lengths = content["lengths"][kind]
    share = sum(lengths) / (len(lengths) * max(lengths))
    lines: dict[str, list[str]] = {}
    for row in (row for row in content["rows"] if row["lengths"] == kind):
        name = f"{code(row['mixer'])}{', causal' if row['causal'] else ''}"
        seconds = row["seconds"]
        others = (f"{seconds[way] / seconds['packed']:.2g}x" for way in _WAYS[1:])
        lines.setdefault(name, []).extend([f"{1e3 * seconds['packed']:,.0f}", *others])
    headers = [
        header
        for phase in ("forward", "training")
        for header in (f"{phase}, packed, ms", "padded", "equal lengths")
    ]
    caption = (
        f"{kind}, {sum(lengths):,} in all, {len(set(lengths))} different lengths; "
        f"padding would leave {100 * share:.0f} % of a batch filled:"
    )
    rows = [[Markdown(name), *cells] for name, cells in lines.items()]
    table = table_lines(["mixer", *headers], rows, range(1, len(headers) + 1))
    return "\n".join([caption, "", *table])


def distil(page: Path, _: list[str]) -> str:
    """Write the accuracy of a model before and after its attention is replaced."""
    result = newest("distil-*")
    content = result.content
    more = content["more_steps"]
    columns = {
        "original": "before",
        "swapped": "after the swap",
        "distilled": f"{more} steps of distil",
        "distilled, fine-tuned": f"{more} of distil, {more} of fine-tuning",
        "fine-tuned": f"{2 * more} of fine-tuning",
    }
    lines = []
    for mixer in dict.fromkeys(row["mixer"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["mixer"] == mixer]
        lines.append([mixer, *(_spread([row[key] for row in rows], 1) for key in columns)])
    seeds = len({row["seed"] for row in content["rows"]})
    note = (
        f"Test accuracy on the digits in %, mean ± standard deviation of {seeds} seeds; an encoder "
        f"of torch.nn, 2 layers of 64 channels, 16 tokens, {content['steps']} steps of training "
        f"before. `python benchmarks/distil.py` wrote {cite(page, result)}."
    )
    table = table_lines(["mixer", *columns.values()], lines, range(1, len(columns) + 1))
    return "\n".join([*table, "", note])


def lengths(page: Path, _: list[str]) -> str:
    """Write the bits per byte of language models on longer texts than in training."""
    result = newest("tssa-lengths-*")
    content = result.content
    ends, lines = content["ends"], []
    for form in dict.fromkeys(row["form"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["form"] == form]
        for key, read in (("bits", "as trained"), ("bits_by_33", "(33)")):
            if key in rows[0] and (form, key) != ("(33)", "bits_by_33"):
                cells = zip(*(row[key] for row in rows), strict=True)
                lines.append([form, read, *(_spread(cell, 3) for cell in cells)])
    bounds = zip((0, *ends), ends, strict=False)
    headers = ["trained with", "read with", *(f"bytes {a + 1:,} to {b:,}" for a, b in bounds)]
    seeds = len({row["seed"] for row in content["rows"]})
    note = (
        f"Bits per byte of Tiny Shakespeare's test text by place in the window, mean ± standard "
        f"deviation of {seeds} seeds; GPT of 4 layers and 64 channels without positions, "
        f"{content['steps']} steps of {content['batch_size']} windows of {ends[0]} bytes, learning "
        f"rate {content['lr']}, not tuned. `python benchmarks/tssa_lengths.py --data-dir data "
        f"--out runs/tssa-lengths` wrote {cite(page, result)}."
    )
    return "\n".join([*table_lines(headers, lines, range(2, len(headers))), "", note])


def _spread(values: Any, digits: int) -> str:
    values = list(values)
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


WRITERS = {"packed": packed, "distil": distil, "lengths": lengths}
