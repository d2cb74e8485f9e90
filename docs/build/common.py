"""Folders, links, stored results and sections that the scripts of this folder share."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from store import Result, load, names

from rifflemix.json_values import decode
from rifflemix.lab.comparison.records import Results
from rifflemix.lab.comparison.rows import Table

BUILD = Path(__file__).resolve().parent
DOCS, ROOT = BUILD.parent, BUILD.parents[1]
DATA, ASSETS = DOCS / "data", DOCS / "assets"


@dataclass(frozen=True)
class Section:
    """One section of docs/results.md.

    Attributes:
        title: heading.
        text: text above the picture; its first sentence is the finding and the alt text.
        name: file name of the picture and the table.
        table: lines of the CSV file.
        sources: results that the numbers come from.
        picture: SVG text, or the name of a picture in docs/assets.
        commands: commands that wrote the results; those of the sources if empty.
        below: Markdown below the picture.
    """

    title: str
    text: str
    name: str
    table: Sequence[Mapping[str, Any]]
    sources: Sequence[Result]
    picture: str = ""
    commands: Sequence[str] = ()
    below: str = ""


def link(page: Path, target: Path) -> str:
    """Return the link from a page to a file."""
    return os.path.relpath(target, page.parent).replace(os.sep, "/")


def cite(page: Path, result: Result) -> str:
    """Link the name of a result to the CSV file with its rows."""
    return f"[{result.name}]({link(page, result.path)})"


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def results_of(result: Result) -> Results:
    """Decode the results of a comparison."""
    return decode(Results, result.content)


@functools.cache
def table_of(name: str) -> Table:
    """Return the rows of a comparison and the decisions between them."""
    return Table(results_of(load(name)))


@functools.cache
def newest_benchmark(benchmark: str, device: str = "cpu", dtype: str = "float32") -> Result:
    """Read the newest complete result of a benchmark, such as "scaling" or "peers/scaling"."""
    for name in reversed(names(f"{benchmark}-*")):
        result = load(name)
        content = result.content
        settings = content["settings"]
        is_asked = settings["device"].partition(":")[0] == device and settings["dtype"] == dtype
        if is_asked and content["status"] == "complete":
            return result
    raise LookupError(f"benchmark: expected a result of {benchmark}, {device}, {dtype}, got none")


def passes_by_tokens(content: Mapping[str, Any], name: str) -> dict[int, Any]:
    """Return {tokens: passes} of the layer with a mixer, for all lengths that were timed."""
    return {
        row["shape"]["tokens"]: row["passes"]
        for row in content["rows"]
        if (row["kind"], row["name"], row["status"]) == ("layer", name, "measured")
    }


def training(
    content: Mapping[str, Any], measure: str, mixers: Sequence[str]
) -> dict[str, dict[int, Any]]:
    """Return {mixer: {tokens: measure of a training pass}}, such as "p50" in seconds."""
    return {
        name: {
            tokens: passes["forward_backward"][measure]
            for tokens, passes in passes_by_tokens(content, name).items()
        }
        for name in mixers
    }
