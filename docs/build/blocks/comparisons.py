"""Blocks with comparisons: the demo, test scores, and the result tables of small studies."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pandas as pd
from common import cite, table_of
from store import load, names, newest

from rifflemix.lab.bench import describe_hardware
from rifflemix.lab.comparison.pages.table import markdown_body
from rifflemix.lab.report.units import format_duration
from rifflemix.text import Markdown, code, table_lines

_SAME = ("task", "model", "dim", "num_layers", "num_heads", "mixers", "seeds", "train")


def demo(page: Path, _: list[str]) -> str:
    """Write the newest demo, and how long the demo takes on each machine."""
    shown = newest("demo/*")
    rows = []
    for result in map(load, names("demo/*")):
        content, runs = result.content, result.content["runs"]
        if any(content["config"][key] != shown.content["config"][key] for key in _SAME):
            continue
        first = runs[0]["wall_seconds"]
        start, end = (datetime.fromisoformat(runs[i]["environment"]["time"]) for i in (0, -1))
        waits = map(format_duration, (first, first + (end - start).total_seconds()))
        machine = Markdown(describe_hardware(content["environment"]))
        rows.append([machine, *waits, Markdown(cite(page, result))])
    headers = ["Machine", "First row", "Whole table", "File"]
    return (
        f"The table of `make demo`, from {cite(page, shown)}:\n\n"
        + markdown_body(table_of(shown.name), ())
        + "\n".join(table_lines(headers, rows, range(1, 3)))
    )


def scores(page: Path, results: list[str]) -> str:
    """Write the test scores and the speed of several comparisons, one line per mixer: NAME, ..."""
    tables = [table_of(name) for name in results]
    headers, lines = ["mixer"], {row.name: [row.name] for table in tables for row in table.rows}
    for table in tables:
        headers += [f"{table.results.task.title}, {table.rows[0].metric}", "steps/s"]
        rows = {row.name: row for row in table.rows if row.test is not None}
        for name, line in lines.items():
            row = rows.get(name)
            line += ["", ""] if row is None else [str(row.test), f"{row.steps_per_second:.3g}"]
    links = ", ".join(cite(page, load(name)) for name in results)
    note = f"Test scores, mean ± standard deviation over seeds. From {links}."
    return "\n".join([*table_lines(headers, lines.values(), range(1, len(headers))), "", note])


def packed(page: Path, _: list[str]) -> str:
    """Write the time of packed batches, and the relative time of padded and equal lengths."""
    result = newest("packed-*")
    content = result.content
    headers = ["mixer"]
    for phase in ("forward", "training"):
        headers += [f"{phase}, packed, ms", "padded", "equal lengths"]
    parts = []
    for kind, lengths in content["lengths"].items():
        share = sum(lengths) / (len(lengths) * max(lengths))
        lines: dict[str, list[str]] = {}
        for row in (row for row in content["rows"] if row["lengths"] == kind):
            name = Markdown(f"{code(row['mixer'])}{', causal' if row['causal'] else ''}")
            own, *others = (row["seconds"][way] for way in ("packed", "padded", "equal"))
            cells = (f"{1e3 * own:,.0f}", *(f"{seconds / own:.2g}x" for seconds in others))
            lines.setdefault(name, [name]).extend(cells)
        parts += [
            f"{kind}, {sum(lengths):,} in all, {len(set(lengths))} different lengths. "
            f"Padding would leave {100 * share:.0f} % of a batch filled.",
            "\n".join(table_lines(headers, lines.values(), range(1, len(headers)))),
        ]
    parts.append(
        f"One layer of {content['dim']} channels and {content['heads']} heads on "
        f"{content['hardware']}; from {cite(page, result)}."
    )
    return "\n\n".join(parts)


def lengths(page: Path, _: list[str]) -> str:
    """Write the bits per byte of language models on longer texts than in training."""
    result = newest("tssa-lengths-*")
    content, ends = result.content, result.content["ends"]
    frame = pd.DataFrame(content["rows"])
    lines = []
    for form, rows in frame.groupby("form", sort=False):
        for key, read in (("bits", "as trained"), ("bits_by_33", "(33)")):
            if (form, key) != ("(33)", "bits_by_33") and rows[key].notna().all():
                bits = pd.DataFrame(list(rows[key]))
                cells = (f"{m:.3f} ± {s:.3f}" for m, s in zip(bits.mean(), bits.std(), strict=True))
                lines.append([form, read, *cells])
    bounds = zip((0, *ends), ends, strict=False)
    headers = ["trained with", "read with", *(f"bytes {a + 1:,} to {b:,}" for a, b in bounds)]
    note = (
        f"Bits per byte of Tiny Shakespeare's test text by place in the window, mean ± standard "
        f"deviation of {frame['seed'].nunique()} seeds. The GPT has 4 layers and 64 channels, and "
        f"no positions. It was trained for {content['steps']} steps of {content['batch_size']} "
        f"windows of {ends[0]} bytes, with learning rate {content['lr']}, not tuned. "
        f"`python benchmarks/tssa_lengths.py --data-dir data --out runs/tssa-lengths` wrote "
        f"{cite(page, result)}."
    )
    return "\n".join([*table_lines(headers, lines, range(2, len(headers))), "", note])


WRITERS = {"demo": demo, "scores": scores, "packed": packed, "lengths": lengths}
