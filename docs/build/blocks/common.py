"""Parts that several blocks share: citations, machines, and results of the benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paths import link
from store import Result, load, names


def cite(page: Path, result: Result) -> str:
    """Link the name of a result to the CSV file with its rows."""
    return f"[{result.name}]({link(page, result.path)})"


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
