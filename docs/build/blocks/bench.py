"""Blocks with the short tables of `rifflemix bench`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blocks.common import cite, newest_benchmark
from rifflemix.lab.bench.rows import PEER, BenchTable
from rifflemix.lab.bench.tables import PASS_TITLES, bench_notes, bench_tables
from rifflemix.mixers import HEADLINE, list_mixers
from rifflemix.text import bold, table_lines

# Passes of the short tables, by benchmark.
_PASSES = {"models": "training_step"}


def results(page: Path, options: list[str]) -> str:
    """Write a short table of the newest result: BENCHMARK, DEVICE, TYPE."""
    result = newest_benchmark(*options)
    content = result.content
    table = short_table(content)
    lines = table_lines(table.headers, table.rows, range(1, len(table.headers)))
    parts = [bold(table.title), "", *lines, ""]
    source = f"From {cite(page, result)}."
    return "\n".join([*parts, f"{bench_notes(content)[0]}. {source}"])


def short_table(content: Mapping[str, Any]) -> BenchTable:
    """Make a table of the headline mixers, or of the fastest backend of each operator.

    The table shows training; of models at several lengths it shows inference.
    """
    tables = bench_tables(_headline(content))
    if content["benchmark"] == "models" and tables[0].headers[1].startswith("N="):
        return tables[0]
    title = PASS_TITLES[_PASSES.get(content["benchmark"], "forward_backward")]
    ending = f": {title}"
    if content["benchmark"] == "scaling":
        ending = f"{title}, ms (x softmax)"
    (table,) = (table for table in tables if table.title.endswith(ending))
    return table


def _headline(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result of the headline mixers, without packages; of operators one shape.

    Models of packages stay: each is next to a model of rifflemix of the same size.
    """
    are_models = content["benchmark"] == "models"
    others = set(list_mixers()) - set(HEADLINE)

    def is_shown(entry: Mapping[str, Any]) -> bool:
        return (are_models or entry["kind"] != PEER) and entry["name"] not in others

    rows = [row for row in content["rows"] if is_shown(row)]
    if content["benchmark"] == "ops":
        rows = [row for row in rows if row["shape"] == rows[0]["shape"]]
        rows = list({row["name"]: row for row in rows}.values())  # the fastest is the last
    short = {**content, "rows": rows}
    if "growth" in content:
        short["growth"] = [entry for entry in content["growth"] if is_shown(entry)]
    return short


WRITERS = {"results": results}
