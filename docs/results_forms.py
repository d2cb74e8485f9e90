"""The question of docs/results.md about padding masks, causal forms and dropout."""

from __future__ import annotations

from itertools import groupby
from statistics import median

from results_common import Answer, by_time, listed, read
from results_pictures import Mark, Row, dots

TITLES = {
    "plain": "plain",
    "padded": "padding mask",
    "causal": "causal",
    "dropout": "dropout",
    "padded, dropout": "padding mask, dropout",
}


def layer_forms() -> Answer:
    """Time of each form of a layer in multiples of the plain one's."""
    path = by_time("layer-forms-*.json")[-1]
    result = read(path)
    drawn: list[Row] = []
    highest: dict[str, float] = {}
    for mixer, group in groupby(result["rows"], lambda row: row["mixer"]):
        rows = {row["form"]: row for row in group}
        plain = rows.pop("plain")
        drawn.append(Row(mixer, (), _milliseconds(plain)))
        for form, row in rows.items():
            training, inference = (
                median(row[way]) / median(plain[way])
                for way in ("training_seconds", "forward_seconds")
            )
            marks = [Mark(training)]
            words = f"{training:.2f}"
            if form != "dropout":  # inference has none
                marks.append(Mark(inference, "other"))
                words += f"; {inference:.2f} inference"
            highest[mixer] = max([highest.get(mixer, 0.0), *(mark.value for mark in marks)])
            drawn.append(Row(TITLES[form], tuple(marks), words))
    most = max(highest, key=lambda mixer: highest[mixer])
    lengths = [f"{length:,}" for length in result["lengths"]]
    says = (
        f"At most {highest[most]:.2f} times the time of the plain layer, in `{most}`; at most "
        f"{max(value for mixer, value in highest.items() if mixer != most):.2f} times in the "
        f"others. A layer of {result['dim']} channels on a batch of {listed(lengths)} tokens, "
        "padded to the longest or all of that length, on one thread. Disks are training, rings "
        "inference. With dropout `softmax` and `token_parallel` skip trailing padding."
    )
    table = [
        {
            "mixer": row["mixer"],
            "form": row["form"],
            "forward_seconds": median(row["forward_seconds"]),
            "training_seconds": median(row["training_seconds"]),
            "training_memory_bytes": row["training_memory_bytes"],
        }
        for row in result["rows"]
    ]
    return Answer("What do padding, a causal form and dropout cost?", says, "layer-forms",
                  dots("Time over the plain layer's", drawn, rule=1.0), table, [path],
                  ["python benchmarks/layer_forms.py --out benchmarks/results"])  # fmt: skip


def _milliseconds(plain: dict[str, list[float]]) -> str:
    training, inference = (
        1e3 * median(plain[way]) for way in ("training_seconds", "forward_seconds")
    )
    return f"{training:.0f} ms; {inference:.0f} inference"
