"""The question of docs/results.md about rows of one host: mixers of all papers side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from results_common import RESULTS, Answer, by_time, listed, read
from results_pictures import Mark, Row, dots
from results_printed import over_seeds, row_key, row_name

from rifflemix.lab.reproduction.agreement import standard_error
from rifflemix.mixers.named import mixer_card
from rifflemix.text import table_lines

_ROWS = "dimension_mixer/table5-listops-"


def one_host() -> Answer:
    """ListOps of full length in the host of Dimension Mixer's Table 5, in full."""
    sources = host_files()
    found = sorted(map(read, sources), key=row_key)
    rows = [over_seeds(list(seeds)) for _, seeds in groupby(found, row_key)]
    rows.sort(key=lambda result: -result["ours"])
    best = rows[0]
    behind = [_name(r) for r in rows if best["ours"] - r["ours"] > 2 * _error_of_both(best, r)]
    starts_of = {_name(r): list(map(left_at, r["of_seeds"])) for r in rows}
    starts = [start for of in starts_of.values() for start in of if start is not None]
    train = best["recipe"]["train"]
    says = (
        f"ListOps of up to 2,000 tokens in the host of Dimension Mixer's Table 5, with "
        f"{train['max_steps']:,} steps of {train['batch_size']} for all. {_name(best)} reaches "
        f"{best['ours']:.2f} %; {listed(behind) or 'none'} are behind it by more than two standard "
        f"errors of the difference. {_who_learned(starts_of)}; those that learned left the "
        f"commonest answer at steps {min(starts):,} to {max(starts):,}, with a learning rate that "
        f"falls from step {train['warmup_steps']:,} on. Rings are the paper's numbers where it "
        "prints one. Bars are two standard errors, of the test samples or of the seeds, whichever "
        "is larger."
    )
    headers = ("Mixer", "Ours, %", "Printed, %", "Seeds", "Parameters", "Made on")
    cells = [
        [_title(r), f"{r['ours']:.2f}", "" if r["printed"] is None else f"{r['printed']:.2f}",
         str(r["runs"]), f"{r['parameters']:,}", _made_on(r)] for r in rows
    ]  # fmt: skip
    return Answer(
        "What do mixers of all papers reach on ListOps in one host?",
        says,
        "host",
        dots("Test accuracy on ListOps of full length, %", [_drawn(result) for result in rows]),
        [_line(result) for result in rows],
        sources,
        [result["command"] for result in found],
        shown="\n".join(table_lines(headers, cells, range(1, len(headers)))),
    )


def _who_learned(starts_of: Mapping[str, Sequence[int | None]]) -> str:
    """Which mixers never left the commonest answer, or not in every seed."""
    idle = [mixer for mixer, starts in starts_of.items() if not any(starts)]
    words = f"By validation accuracy {listed(idle) or 'none'} learned nothing"
    partly = [
        f"{mixer} only in {sum(map(bool, starts))} of {len(starts)} seeds"
        for mixer, starts in starts_of.items()
        if any(starts) and not all(starts)
    ]
    return f"{words}, {listed(partly)}" if partly else words


def host_files() -> list[Path]:
    """The results of these rows that were run in full."""
    files = sorted((RESULTS / "reproduce").glob(f"{_ROWS.replace('/', '-')}*.json"))
    return [path for path in files if not read(path)["is_reduced"]]


def left_above() -> float:
    """The validation accuracy above which a model has left the commonest answer."""
    return float(read(by_time("plateau-*.json")[-1])["left_above"])


def left_at(result: Mapping[str, Any]) -> int | None:
    """The step of the first evaluation above `left_above`; None where there is none."""
    above, curve = left_above(), result["result"]["validation"]
    return next((p["step"] for p in curve if p["accuracy"] > above), None)


def mixer_of(result: Mapping[str, Any]) -> str:
    """The mixer of a row."""
    return str(result["recipe"]["model_settings"]["mixer"])


def _name(result: Mapping[str, Any]) -> str:
    """The mixer, and the row where the paper has two of it."""
    return mixer_of(result) + _which(result)


def _title(result: Mapping[str, Any]) -> str:
    return str(mixer_card(mixer_of(result)).title) + _which(result)


def _which(result: Mapping[str, Any]) -> str:
    """Words for a row that is not called after its mixer."""
    own = row_name(result).removeprefix(_ROWS) == mixer_of(result)
    return "" if own else f", as {result['recipe']['row'].rstrip('.')}"


def _made_on(result: Mapping[str, Any]) -> str:
    """Machines and precisions of a row's seeds."""
    return "; ".join(dict.fromkeys(map(_machine, result["of_seeds"])))


def _machine(result: Mapping[str, Any]) -> str:
    precision = result["result"]["precision"]
    gpu = result["environment"]["hardware"]["gpu"]
    return f"{gpu or 'CPU'}, {'float32' if precision == 'no' else precision}"


def _error(result: Mapping[str, Any]) -> float:
    """Standard error of a row's mean: that of the test samples or of the seeds, the larger."""
    samples = standard_error(result) or 0.0
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
    """A line of the CSV file."""
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
