"""What docs/results.md says of the papers' printed numbers, and of the rows that were run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from results_common import RESULTS, Answer, by_time, listed, read
from results_pictures import Mark, Row, dots

from rifflemix.recipes import get_recipe, list_recipes
from rifflemix.report.markdown import table_lines
from rifflemix.report.units import format_percent


def printed() -> Answer:
    """Rows of the papers' tables that were run."""
    kept = sorted((RESULTS / "reproduce").glob("*.json"))
    sources = [path for path in kept if read(path)["printed"] is not None]
    found = sorted((read(path) for path in sources), key=row_name)
    rows = [over_seeds(list(seeds)) for _, seeds in groupby(found, row_name)]
    last_weights = by_time("last-weights-*.json")[-1:]
    by_last_weights = {
        row["recipe"]: 100 * row["last"]["test"]
        for path in last_weights
        for row in read(path)["rows"]
    }
    commands = [
        *(result["command"] for result in found),
        *(f"python benchmarks/{_command(path)}" for path in last_weights),
    ]
    return Answer(
        "Do the papers' numbers come out?",
        _says(rows, by_last_weights),
        "printed",
        dots("Printed and ours, %", [_drawn(result) for result in rows]),
        [_line(result, by_last_weights) for result in rows],
        [*sources, *last_weights],
        commands,
        shown=_in_full(rows),
    )


def _says(rows: Sequence[Mapping[str, Any]], by_last_weights: Mapping[str, float]) -> str:
    numbers = sum(get_recipe(name).printed is not None for name in list_recipes())
    full = [result for result in rows if not result["is_reduced"]]
    beyond = [result for result in full if abs(result["difference"]) > 2 * standard_error(result)]
    why = f"; not {listed([_against(r, by_last_weights) for r in beyond])}" if beyond else ""
    return (
        f"Of {numbers} printed numbers that have a recipe, {len(rows)} were begun and {len(full)} "
        f"run in full, of which {len(full) - len(beyond)} lie within two standard errors of the "
        f"test samples{why}. A reduced run reproduces nothing: it shows that the model learns. "
        "Disks are printed, rings are ours. [The whole table](reproduced/report.md)."
    )


def _drawn(result: Mapping[str, Any]) -> Row:
    share = result["steps"] / result["steps_planned"]
    reduced = f", {format_percent(share)} % of steps" if result["is_reduced"] else ""
    words = f"{result['ours']:.2f} of {result['printed']:.2f}{reduced}"
    marks = (Mark(result["printed"], "main"), Mark(result["ours"], "other"))
    return Row(row_name(result).partition("/")[2], marks, words)


def _line(result: Mapping[str, Any], by_last_weights: Mapping[str, float]) -> dict[str, Any]:
    """A line of the CSV file."""
    kept = ("printed", "ours", "unit", "steps", "steps_planned", "is_reduced", "seeds")
    return {
        "recipe": row_name(result),
        **{key: result[key] for key in kept},
        "standard_error": "" if result["is_reduced"] else standard_error(result),
        "last_weights": by_last_weights.get(row_name(result), ""),
    }


def _in_full(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows that were run in full, as a table."""
    headers = ("Row in full", "Printed", "Ours", "Difference", "Standard error", "Seeds")
    cells = [
        [
            f"`{row_name(result)}`",
            f"{result['printed']:.2f}",
            f"{result['ours']:.2f}" + (f" ({_each(result)})" if result["runs"] > 1 else ""),
            f"{result['difference']:+.2f}",
            f"{standard_error(result):.2f}",
            str(result["runs"]),
        ]
        for result in rows
        if not result["is_reduced"]
    ]
    return "\n".join(table_lines(headers, cells, range(1, len(headers))))


def row_name(result: Mapping[str, Any]) -> str:
    """The recipe of a result."""
    return str(result["recipe"]["name"])


def over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of the mean over the seeds that went furthest."""
    most = max(result["steps"] for result in results)
    kept = sorted((r for r in results if r["steps"] == most), key=lambda result: result["seed"])
    ours = statistics.fmean(result["ours"] for result in kept)
    return {
        **kept[0],
        "ours": ours,
        "difference": None if kept[0]["printed"] is None else ours - kept[0]["printed"],
        "runs": len(kept),
        "seeds": " ".join(str(result["seed"]) for result in kept),
        "each": [result["ours"] for result in kept],
    }


def _each(result: Mapping[str, Any]) -> str:
    return listed([f"{ours:.2f}" for ours in result["each"]])


def _command(path: Path) -> str:
    return str(read(path)["environment"]["command"])


def standard_error(result: Mapping[str, Any]) -> float:
    """Of an accuracy in percent on the row's test samples."""
    task, share = result["task"], result["ours"] / 100
    size = task["sizes"]["test"] if "sizes" in task else task["options"]["num_test"]
    return 100 * math.sqrt(share * (1 - share) / size)


def learned_from(result: Mapping[str, Any]) -> int | None:
    """The step from which validation accuracy was beyond the noise of its first value."""
    curve = result["result"]["validation"]
    sizes = result["task"].get("sizes") or {}
    size = sizes.get("validation", result["task"]["options"].get("num_validation"))
    first = curve[0]["accuracy"]
    noise = math.sqrt(first * (1 - first) / size)
    return next((p["step"] for p in curve if p["accuracy"] - first > 4 * noise), None)


def _against(result: Mapping[str, Any], by_last_weights: Mapping[str, float]) -> str:
    """Our number of a row in full, the printed one, and what the last weights give."""
    name = row_name(result)
    words = (
        f"{name}, {result['ours']:.2f} for the printed {result['printed']:.2f} (standard error "
        f"{standard_error(result):.2f}"
    )
    if name in by_last_weights:
        words += (
            f"; ours is of the weights that validation chose, the last weights give "
            f"{by_last_weights[name]:.2f}"
        )
    if learned_from(result) is None:
        words += "; it never left the commonest answer"
    return f"{words})"
