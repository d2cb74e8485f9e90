"""The section on mixers of all papers in one model, on ListOps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from charts import Mark, Row, dots
from paths import listed
from sections.common import Section
from sections.reproduced import over_seeds, row_key, row_name
from store import Result, load, names, newest

from rifflemix.lab.reproduction.agreement import standard_error
from rifflemix.lab.reproduction.records import decode_reproduction
from rifflemix.mixers.registry import mixer_card
from rifflemix.text import table_lines

_ROWS = "dimension_mixer/table5-listops-"


def one_host() -> Section:
    """Compare full runs of mixers in the model of Dimension Mixer's Table 5."""
    sources = host_results()
    found = sorted((result.content for result in sources), key=row_key)
    rows = [over_seeds(list(seeds)) for _, seeds in groupby(found, row_key)]
    rows.sort(key=lambda result: -result["ours"])
    best = rows[0]
    behind = [_name(r) for r in rows if best["ours"] - r["ours"] > 2 * _error_of_both(best, r)]
    starts_of = {_name(r): list(map(left_at, r["of_seeds"])) for r in rows}
    starts = [start for of in starts_of.values() for start in of if start is not None]
    train = best["recipe"]["train"]
    text = (
        f"{_who_learned(starts_of)}. The other runs beat the majority-class baseline at steps "
        f"{min(starts):,} to {max(starts):,}. {_name(best)} reaches {best['ours']:.2f} %; "
        f"{listed(behind) or 'no mixer'} are worse by more than two standard errors of the "
        "difference. ListOps has up to 2,000 tokens here; the model is that of Dimension Mixer's "
        f"Table 5, trained for {train['max_steps']:,} steps of {train['batch_size']} samples. "
        "Rings are reported values; bars are two standard errors."
    )
    headers = ("Mixer", "Reproduced, %", "Reported, %", "Seeds", "Parameters", "Hardware")
    cells = [
        [_title(r), f"{r['ours']:.2f}", "" if r["printed"] is None else f"{r['printed']:.2f}",
         str(r["runs"]), f"{r['parameters']:,}", _made_on(r)] for r in rows
    ]  # fmt: skip
    return Section(
        "ListOps of full length",
        text,
        "host",
        dots("Test accuracy on ListOps of full length, %", [_drawn(result) for result in rows]),
        [_line(result) for result in rows],
        sources,
        [result["command"] for result in found],
        below="\n".join(table_lines(headers, cells, range(1, len(headers)))),
    )


def _who_learned(starts_of: Mapping[str, Sequence[int | None]]) -> str:
    """Name the mixers that never beat the majority-class baseline, or not with every seed."""
    idle = [mixer for mixer, starts in starts_of.items() if not any(starts)]
    words = f"By validation accuracy, {listed(idle) or 'no mixer'} learned nothing"
    partly = [
        f"{mixer} only in {sum(map(bool, starts))} of {len(starts)} seeds"
        for mixer, starts in starts_of.items()
        if any(starts) and not all(starts)
    ]
    return f"{words}, {listed(partly)}" if partly else words


def host_results() -> list[Result]:
    """Return the full runs of these rows."""
    found = map(load, sorted(names(f"reproduce/{_ROWS.replace('/', '-')}*")))
    return [result for result in found if not result.content["is_reduced"]]


def left_above() -> float:
    """Return the validation accuracy that counts as above the majority-class baseline."""
    return float(newest("plateau-*").content["left_above"])


def left_at(result: Mapping[str, Any]) -> int | None:
    """Return the step of the first evaluation above `left_above`, or None."""
    above, curve = left_above(), result["result"]["validation"]
    return next((p["step"] for p in curve if p["accuracy"] > above), None)


def mixer_of(result: Mapping[str, Any]) -> str:
    """Return the mixer of a row."""
    return str(result["recipe"]["model_settings"]["mixer"])


def _name(result: Mapping[str, Any]) -> str:
    """Return the mixer, and the row if the paper has two rows of it."""
    return mixer_of(result) + _which(result)


def _title(result: Mapping[str, Any]) -> str:
    return str(mixer_card(mixer_of(result)).title) + _which(result)


def _which(result: Mapping[str, Any]) -> str:
    """Return words for a row that has another name than its mixer."""
    own = row_name(result).removeprefix(_ROWS) == mixer_of(result)
    return "" if own else f", as {result['recipe']['row'].rstrip('.')}"


def _made_on(result: Mapping[str, Any]) -> str:
    """Return the machines and precisions of a row's seeds."""
    return "; ".join(dict.fromkeys(map(_machine, result["of_seeds"])))


def _machine(result: Mapping[str, Any]) -> str:
    precision = result["result"]["precision"]
    gpu = result["environment"]["hardware"]["gpu"]
    return f"{gpu or 'CPU'}, {'float32' if precision == 'no' else precision}"


def _error(result: Mapping[str, Any]) -> float:
    """Return the standard error of a mean: of test samples or of seeds, the larger of both."""
    samples = standard_error(decode_reproduction(result)) or 0.0
    each = result["each"]
    seeds = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    return max(samples, seeds)


def _error_of_both(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    return math.hypot(_error(a), _error(b))


def _drawn(result: Mapping[str, Any]) -> Row:
    ours, error = result["ours"], _error(result)
    marks = [Mark(ours, "main", ours - 2 * error, ours + 2 * error)]
    if result["printed"] is not None:
        marks.append(Mark(result["printed"], "other"))
    return Row(_name(result), tuple(marks), f"{ours:.2f}")


def _line(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of the CSV file."""
    return {
        "recipe": row_name(result),
        "mixer": mixer_of(result),
        "ours": result["ours"],
        "standard_error": _error(result),
        "printed": "" if result["printed"] is None else result["printed"],
        "seeds": result["seeds"],
        "parameters": result["parameters"],
        "learned_from_step": " ".join(str(left_at(seed) or "never") for seed in result["of_seeds"]),
        "made_on": _made_on(result),
    }
