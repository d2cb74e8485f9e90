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
from rifflemix.reproduction.tables import one_per_seed

_PLATEAU = "#when-do-mixers-leave-the-commonest-answer-on-listops"

# What the settings are that a sweep of a row has and its recipe does not.
_VARIED = {
    "sinkhorn/table6-imdb-word-b16": "Tensor2Tensor's labels, mean over tokens and embeddings"
}


def printed() -> Answer:
    """Rows of the papers' tables that were run."""
    kept = sorted((RESULTS / "reproduce").glob("*.json"))
    sources = [path for path in kept if _has_a_printed_number(read(path))]
    found = sorted((read(path) for path in sources), key=row_name)
    rows = [over_seeds(list(seeds)) for _, seeds in groupby(found, row_name)]
    last_weights, sweeps = by_time("last-weights-*.json"), by_time("sweep-*.json")
    measured = [row for path in last_weights for row in read(path)["rows"]]
    by_last_weights = {
        row["recipe"]: 100 * row["last"]["test"] for row in measured if "settings" not in row
    }
    varied = {row["recipe"]: row for row in measured if "settings" in row}
    commands = [
        *(result["command"] for result in found),
        *(f"python benchmarks/{_command(path)}" for path in last_weights),
        *(read(path)["command"] for path in sweeps),
    ]
    return Answer(
        "Do the papers' numbers come out?",
        _says(rows),
        "printed",
        dots("Printed and ours, %", [_drawn(result) for result in rows]),
        [_line(result, by_last_weights) for result in rows],
        [*sources, *last_weights, *sweeps],
        commands,
        shown=_in_full(rows, by_last_weights, varied),
    )


def _has_a_printed_number(result: Mapping[str, Any]) -> bool:
    """Whether a result can be compared with the paper's number."""
    return result["printed"] is not None and not result["recipe"].get("not_comparable")


def _says(rows: Sequence[Mapping[str, Any]]) -> str:
    numbers = sum(get_recipe(name).printed is not None for name in list_recipes())
    full = [result for result in rows if not result["is_reduced"]]
    near = len(full) - sum(map(_is_beyond, full))
    return (
        f"Of {numbers} printed numbers with a recipe, {len(rows)} were begun and {len(full)} run "
        f"in full. Of these, {near} lie within two standard errors of the test samples; the table "
        "says what is known of the others; a recipe's notes, which its run prints, say where it is "
        "not the published one. A reduced run reproduces nothing: it only shows that "
        "the model learns. Disks are ours, rings are printed. "
        "[The whole table](reproduced/report.md)."
    )


def _drawn(result: Mapping[str, Any]) -> Row:
    share = result["steps"] / result["steps_planned"]
    reduced = f", {format_percent(share)} % run" if result["is_reduced"] else ""
    words = f"{result['ours']:.2f} of {result['printed']:.2f}{reduced}"
    marks = (Mark(result["ours"], "main"), Mark(result["printed"], "other"))
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


def _in_full(
    rows: Sequence[Mapping[str, Any]],
    by_last_weights: Mapping[str, float],
    varied: Mapping[str, Mapping[str, Any]],
) -> str:
    """The rows that were run in full, as a table."""
    headers = ("Row in full", "Printed", "Ours", "Difference", "Standard error", "Seeds", "Why")
    cells = [
        [
            f"`{row_name(result)}`",
            f"{result['printed']:.2f}",
            f"{result['ours']:.2f}" + (f" ({_each(result)})" if result["runs"] > 1 else ""),
            f"{result['difference']:+.2f}",
            f"{standard_error(result):.2f}",
            str(result["runs"]),
            _why(result, by_last_weights, varied) if _is_beyond(result) else "",
        ]
        for result in rows
        if not result["is_reduced"]
    ]
    return "\n".join(table_lines(headers, cells, range(1, len(headers) - 1)))


def _is_beyond(result: Mapping[str, Any]) -> bool:
    return bool(abs(result["difference"]) > 2 * standard_error(result))


def row_name(result: Mapping[str, Any]) -> str:
    """The recipe of a result."""
    return str(result["recipe"]["name"])


def over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of the mean over the seeds that went furthest, `of_seeds`.

    Of a seed that was run in several precisions, the recipe's own counts; the rest are `others`.
    """
    most = max(result["steps"] for result in results)
    furthest = [result for result in results if result["steps"] == most]
    kept = one_per_seed(furthest)
    ours = statistics.fmean(result["ours"] for result in kept)
    return {
        **kept[0],
        "ours": ours,
        "difference": None if kept[0]["printed"] is None else ours - kept[0]["printed"],
        "runs": len(kept),
        "seeds": " ".join(str(result["seed"]) for result in kept),
        "each": [result["ours"] for result in kept],
        "of_seeds": kept,
        "others": [result for result in furthest if result not in kept],
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


def _leaves_when_shorter(result: Mapping[str, Any]) -> bool:
    """Whether its mixer left the commonest answer of the same task with fewer positions."""
    mixer = result["recipe"]["model_settings"]["mixer"]
    rows = (row for path in by_time("plateau-*.json") for row in read(path)["rows"])
    return any(row["left"] and row["form"].partition("/")[0] == mixer for row in rows)


def _why(
    result: Mapping[str, Any],
    by_last_weights: Mapping[str, float],
    varied: Mapping[str, Mapping[str, Any]],
) -> str:
    """What is known of a difference from the printed number."""
    others = [
        f"{r['ours']:.2f} in {r['result']['precision']} of seed {r['seed']}"
        for r in result["others"]
    ]
    idle = [r for r in result["of_seeds"] if learned_from(r) is None]
    if idle:
        words = "never left the commonest answer"
        if len(idle) < result["runs"]:
            seeds = listed([str(r["seed"]) for r in idle])
            words = f"seed{'s' if len(idle) > 1 else ''} {seeds} {words}"
        elif _leaves_when_shorter(result):
            words += f", though [with fewer positions]({_PLATEAU}) it does"
        return "; ".join([words, *others])
    curve = result["result"]["validation"]
    best, last = max(curve, key=lambda point: point["accuracy"]), curve[-1]
    words = f"weights of step {best['step']:,}, which validation chose; those of the last step "
    if row_name(result) in by_last_weights:
        words += f"give {by_last_weights[row_name(result)]:.2f}"
    else:
        lost = 100 * (best["accuracy"] - last["accuracy"])
        words += f"are {lost:.2f} points worse by validation"
    held_back = [
        note for note in result["recipe"]["notes"] if note.startswith("a tenth of the training")
    ]
    settings = [_varied(varied[name])] if (name := row_name(result)) in varied else []
    return "; ".join([words, *held_back, *settings, *others])


def _varied(row: Mapping[str, Any]) -> str:
    """What a recipe with other settings gave."""
    settings = [
        f"`{name}={value:.3g}`" if isinstance(value, float) else f"`{name}={value}`"
        for name, value in row["settings"].items()
    ]
    chosen, last = 100 * row["chosen"]["test"], 100 * row["last"]["test"]
    words = f"with {_VARIED[row['recipe']]} ({listed(settings)}) {chosen:.2f}"
    return f"{words}, those of the last step {last:.2f}"
