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

from rifflemix.lab.recipes import get_recipe, list_recipes
from rifflemix.lab.report.units import format_percent
from rifflemix.lab.reproduction.agreement import (
    OTHER_DATA,
    agreement,
    changed_settings,
    count_test_samples,
)
from rifflemix.lab.reproduction.tables import one_per_seed
from rifflemix.text import Markdown, code, table_lines

_PLATEAU = "#when-do-mixers-leave-the-commonest-answer-on-listops"

# What the settings are that a sweep of a row has and its recipe does not.
_VARIED = {
    "sinkhorn/table6-imdb-word-b16": "Tensor2Tensor's labels, mean over tokens and embeddings"
}


def printed() -> Answer:
    """Rows of the papers' tables that were run."""
    kept = sorted((RESULTS / "reproduce").glob("*.json"))
    sources = [path for path in kept if _has_a_printed_number(read(path))]
    found = sorted((read(path) for path in sources), key=row_key)
    rows = [over_seeds(list(seeds)) for _, seeds in groupby(found, row_key)]
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
    whole = [result for result in rows if not result["is_reduced"]]
    full = [result for result in whole if not result["changed"]]
    near = sum(not result["agreement"].is_beyond for result in full)
    begun = len({row_name(result) for result in rows})
    return (
        f"Of {numbers} recipes with a printed number, {begun} were begun. {_counted(whole, full)}"
        f"Of these {len(full)}, {near} are within two standard errors of the printed number. The "
        "errors count the test samples of both numbers. "
        f"{_one_sided(full)}"
        "The table explains the others. A run prints the notes of its recipe: differences from "
        "the published row. A reduced run reproduces nothing: it only shows that the model learns. "
        "Filled circles are ours, rings are printed. "
        "[The whole table](reproduced/report.md)."
    )


def _counted(whole: Sequence[Mapping[str, Any]], full: Sequence[Mapping[str, Any]]) -> str:
    """Count the rows in full, and those that have other data or settings than their recipe."""
    if len(whole) == len(full):
        return f"{len(full)} rows were run in full. "
    data = sum(result["changed"] == OTHER_DATA for result in whole)
    settings = len(whole) - len(full) - data
    reasons = [
        f"{count} {'has' if count == 1 else 'have'} other {what} than the recipe now"
        for count, what in ((data, "data"), (settings, "settings"))
        if count
    ]
    return (
        f"{len(whole)} rows were run in full. {listed(reasons)}: they have no difference from the "
        f"printed number until they are run again. {len(full)} of {len(whole)} rows remain. "
    )


def _one_sided(full: Sequence[Mapping[str, Any]]) -> str:
    """Name the rows of which only one of the two errors is known."""
    names = [f"`{row_name(result)}`" for result in full if result["agreement"].unknown]
    return f"Only one error is known of {listed(names)}. " if names else ""


def _drawn(result: Mapping[str, Any]) -> Row:
    name, ours = row_name(result).partition("/")[2], f"{result['ours']:.2f}"
    if result["changed"]:
        return Row(name, (Mark(result["ours"], "main"),), f"{ours}, {result['changed']}")
    share = result["steps"] / result["steps_planned"]
    reduced = f", {format_percent(share)} % run" if result["is_reduced"] else ""
    marks = (Mark(result["ours"], "main"), Mark(result["printed"], "other"))
    return Row(name, marks, f"{ours} of {result['printed']:.2f}{reduced}")


def _line(result: Mapping[str, Any], by_last_weights: Mapping[str, float]) -> dict[str, Any]:
    """A line of the CSV file; a reduced or changed run has no errors."""
    found = result["agreement"]
    kept = ("ours", "unit", "steps", "steps_planned", "is_reduced", "changed", "seeds")
    return {
        "recipe": row_name(result),
        "printed": _text(result["printed"]),
        **{key: result[key] for key in kept},
        "test_samples": "" if found is None else _text(count_test_samples(result)),
        "standard_error": "" if found is None else _text(found.reproduced_error),
        "standard_error_printed": "" if found is None else _text(found.reported_error),
        "last_weights": by_last_weights.get(row_name(result), ""),
    }


def _text(value: float | None) -> float | str:
    return "" if value is None else value


def _in_full(
    rows: Sequence[Mapping[str, Any]],
    by_last_weights: Mapping[str, float],
    varied: Mapping[str, Mapping[str, Any]],
) -> str:
    """The rows that were run in full, as a table."""
    headers = (
        "Row in full", "Printed", "Ours", "Difference", "Standard error of both", "Seeds", "Why",
    )  # fmt: skip
    cells = [
        [
            Markdown(", ".join(filter(None, [code(row_name(result)), result["changed"]]))),
            "" if result["changed"] else f"{result['printed']:.2f}",
            f"{result['ours']:.2f}" + (f" ({_each(result)})" if result["runs"] > 1 else ""),
            *_compared(result),
            str(result["runs"]),
            "" if result["changed"] else Markdown(_why(result, by_last_weights, varied)),
        ]
        for result in rows
        if not result["is_reduced"]
    ]
    return "\n".join(table_lines(headers, cells, range(1, len(headers) - 1)))


def _compared(result: Mapping[str, Any]) -> tuple[str, str]:
    """The difference from the printed number and its standard error; empty if changed."""
    found = result["agreement"]
    if found is None:
        return "", ""
    error = "" if found.error is None else f"{found.error:.2f}"
    return f"{found.difference:+.2f}", error


def row_name(result: Mapping[str, Any]) -> str:
    """The recipe of a result."""
    return str(result["recipe"]["name"])


def row_key(result: Mapping[str, Any]) -> tuple[str, str]:
    """The recipe of a result, and what the run has that the recipe has not."""
    return row_name(result), changed_settings(result)


def over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average the seeds of one `row_key` that went furthest, `of_seeds`.

    Of a seed that was run in several precisions, the recipe's own counts; the rest are `others`.
    A row of other data or settings has no printed number.
    """
    most = max(result["steps"] for result in results)
    furthest = [result for result in results if result["steps"] == most]
    kept = one_per_seed(furthest)
    ours = statistics.fmean(result["ours"] for result in kept)
    return {
        **kept[0],
        "ours": ours,
        "printed": None if changed_settings(kept[0]) else kept[0]["printed"],
        "changed": changed_settings(kept[0]),
        "agreement": agreement(kept),
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
    """Say which seeds learned nothing, or what is known of a difference beyond the errors."""
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
    if not result["agreement"].is_beyond:
        return ""
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
