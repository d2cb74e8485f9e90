"""The section on reproduced values next to the values that the papers report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from charts import Mark, Row, dots
from paths import listed
from sections.common import Section
from store import load, names

from rifflemix.lab.recipes import get_recipe, list_recipes
from rifflemix.lab.reproduction.agreement import (
    OTHER_DATA,
    agreement,
    changed_settings,
    count_test_samples,
)
from rifflemix.lab.reproduction.records import decode_reproduction
from rifflemix.lab.reproduction.tables import one_per_seed
from rifflemix.text import Markdown, code, table_lines

# Settings of a sweep that its recipe does not have.
_VARIED = {
    "sinkhorn/table6-imdb-word-b16": "Tensor2Tensor's labels, mean over tokens and embeddings"
}


def printed() -> Section:
    """Compare the runs with the papers' tables."""
    stored = [load(name) for name in sorted(names("reproduce/*"))]
    sources = [result for result in stored if _has_a_printed_number(result.content)]
    found = sorted((result.content for result in sources), key=row_key)
    rows = [over_seeds(list(seeds)) for _, seeds in groupby(found, row_key)]
    last_weights, sweeps = (
        [load(name) for name in names(pattern)] for pattern in ("last-weights-*", "sweep-*")
    )
    measured = [row for result in last_weights for row in result.content["rows"]]
    by_last_weights = {
        row["recipe"]: 100 * row["last"]["test"] for row in measured if "settings" not in row
    }
    varied = {row["recipe"]: row for row in measured if "settings" in row}
    commands = [
        *(result["command"] for result in found),
        *(
            f"{of['command']}  # in benchmarks/ at commit {of['git_commit'][:12]}"
            for of in (result.content["environment"] for result in last_weights)
        ),
        *(result.content["command"] for result in sweeps),
    ]
    return Section(
        "Reproduced values",
        _summary(rows),
        "printed",
        dots(
            "Reproduced minus reported value, points",
            [_drawn(row) for row in rows if row["agreement"] and not row["is_reduced"]],
            rule=0.0,
        ),
        [_line(result, by_last_weights) for result in rows],
        [*sources, *last_weights, *sweeps],
        commands,
        below=_in_full(rows, by_last_weights, varied),
    )


def _has_a_printed_number(result: Mapping[str, Any]) -> bool:
    """Return whether the paper reports a comparable number."""
    return result["printed"] is not None and not result["recipe"].get("not_comparable")


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    numbers = sum(get_recipe(name).printed is not None for name in list_recipes())
    whole = [result for result in rows if not result["is_reduced"]]
    full = [result for result in whole if not result["changed"]]
    near = sum(not result["agreement"].is_beyond for result in full)
    begun = len({row_name(result) for result in rows})
    return (
        f"Of {len(full)} comparable results, {near} are within two standard errors of the reported "
        f"number. {numbers} recipes have a reported number. {begun} of them were run, some in "
        f"part. {_counted(whole, full)}"
        "The errors count the test samples of both numbers. "
        f"{_one_sided(full)}"
        "The table gives reasons for larger differences. Bars are two standard errors. `rifflemix "
        "report` writes the papers' tables with the runs of your folders."
    )


def _counted(whole: Sequence[Mapping[str, Any]], full: Sequence[Mapping[str, Any]]) -> str:
    """Count the rows in full, and those that have other data or settings than their recipe."""
    if len(whole) == len(full):
        return f"{len(full)} recipes were run in full. "
    data = sum(result["changed"] == OTHER_DATA for result in whole)
    settings = len(whole) - len(full) - data
    reasons = [
        f"{count} used other {what} than the recipe has now"
        for count, what in ((data, "data"), (settings, "settings"))
        if count
    ]
    return (
        f"{len(whole)} recipes were run in full, and {len(full)} of these are comparable: "
        f"{listed(reasons)}. "
    )


def _one_sided(full: Sequence[Mapping[str, Any]]) -> str:
    """Name the rows of which only one of the two errors is known."""
    names = [f"`{row_name(result)}`" for result in full if result["agreement"].unknown]
    return f"Only one error is known of {listed(names)}. " if names else ""


def _drawn(result: Mapping[str, Any]) -> Row:
    found = result["agreement"]
    difference, error = found.difference, 2 * (found.error or 0.0)
    mark = Mark(difference, "main" if found.is_beyond else "other", difference - error,
                difference + error)  # fmt: skip
    return Row(row_name(result).partition("/")[2], (mark,), f"{difference:+.2f}")


def _line(result: Mapping[str, Any], by_last_weights: Mapping[str, float]) -> dict[str, Any]:
    """Return a line of the CSV file; a reduced or changed run has no errors."""
    found, samples = result["agreement"], count_test_samples(decode_reproduction(result))
    kept = ("ours", "unit", "steps", "steps_planned", "is_reduced", "changed", "seeds")
    return {
        "recipe": row_name(result),
        "printed": _text(result["printed"]),
        **{key: result[key] for key in kept},
        "test_samples": "" if found is None else _text(samples),
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
    """Write a table of the full rows."""
    headers = (
        "Recipe, run in full", "Reported", "Reproduced", "Difference", "Standard error of both",
        "Seeds", "Reason",
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
    """Return the difference from the reported number and its error; empty if changed."""
    found = result["agreement"]
    if found is None:
        return "", ""
    error = "" if found.error is None else f"{found.error:.2f}"
    return f"{found.difference:+.2f}", error


def row_name(result: Mapping[str, Any]) -> str:
    """Return the recipe of a result."""
    return str(result["recipe"]["name"])


def row_key(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return the recipe of a result, and the settings that differ from it."""
    return row_name(result), changed_settings(decode_reproduction(result))


def over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average the longest runs of one `row_key`; they are in `of_seeds`.

    Of runs of one seed in several precisions, the run in the recipe's precision counts. The rest is
    in `others`. A row of other data or settings has no reported number.
    """
    most = max(result["steps"] for result in results)
    furthest = [result for result in results if result["steps"] == most]
    pairs = [(decode_reproduction(result), result) for result in furthest]
    counted = one_per_seed([record for record, _ in pairs])
    kept = [next(result for record, result in pairs if record is one) for one in counted]
    changed = changed_settings(counted[0])
    ours = statistics.fmean(result["ours"] for result in kept)
    return {
        **kept[0],
        "ours": ours,
        "printed": None if changed else kept[0]["printed"],
        "changed": changed,
        "agreement": agreement(counted),
        "runs": len(kept),
        "seeds": " ".join(str(result["seed"]) for result in kept),
        "each": [result["ours"] for result in kept],
        "of_seeds": kept,
        "others": [result for result in furthest if result not in kept],
    }


def _each(result: Mapping[str, Any]) -> str:
    return listed([f"{ours:.2f}" for ours in result["each"]])


def learned_from(result: Mapping[str, Any]) -> int | None:
    """Return the step at which validation accuracy exceeds the noise of its first value."""
    curve = result["result"]["validation"]
    sizes = result["task"].get("sizes") or {}
    size = sizes.get("validation", result["task"]["options"].get("num_validation"))
    first = curve[0]["accuracy"]
    noise = math.sqrt(first * (1 - first) / size)
    return next((p["step"] for p in curve if p["accuracy"] - first > 4 * noise), None)


def _why(
    result: Mapping[str, Any],
    by_last_weights: Mapping[str, float],
    varied: Mapping[str, Mapping[str, Any]],
) -> str:
    """Name the seeds that learned nothing, or give reasons for a significant difference."""
    others = [
        f"{r['ours']:.2f} in {r['result']['precision']} of seed {r['seed']}"
        for r in result["others"]
    ]
    idle = [r for r in result["of_seeds"] if learned_from(r) is None]
    if idle:
        words = "never beat the majority-class baseline"
        if len(idle) < result["runs"]:
            seeds = listed([str(r["seed"]) for r in idle])
            words = f"seed{'s' if len(idle) > 1 else ''} {seeds} {words}"
        return "; ".join([words, *others])
    if not result["agreement"].is_beyond:
        return ""
    curve = result["result"]["validation"]
    best, last = max(curve, key=lambda point: point["accuracy"]), curve[-1]
    words = f"validation chose the weights of step {best['step']:,}; the weights of the last step "
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
    """Return the results of a recipe with other settings."""
    settings = [
        f"`{name}={value:.3g}`" if isinstance(value, float) else f"`{name}={value}`"
        for name, value in row["settings"].items()
    ]
    chosen, last = 100 * row["chosen"]["test"], 100 * row["last"]["test"]
    words = f"with {_VARIED[row['recipe']]} ({listed(settings)}) {chosen:.2f}"
    return f"{words}, with the weights of the last step {last:.2f}"
