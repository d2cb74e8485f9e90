"""The section on conversions of a trained sentence encoder."""

from __future__ import annotations

from charts import Mark, Row, dots
from sections.common import Section
from store import newest


def conversion() -> Section:
    """Compare ways to convert a trained sentence encoder, and two controls."""
    result = newest("conversion-study-*")
    content = result.content
    rows = sorted(content["rows"], key=lambda row: (row["mixer"] != "softmax", row["mixer"]))
    original = next(row for row in rows if row["arm"] == "original")["test_spearman"]
    drawn, mixers = [], dict.fromkeys(row["mixer"] for row in rows)
    for mixer in mixers:
        drawn.append(Row("the original" if mixer == "softmax" else f"softmax to {mixer}"))
        for row in (row for row in rows if row["mixer"] == mixer):
            low, high = (original + row.get(side, 0.0) for side in ("low", "high"))
            mark = Mark(row["test_spearman"], "main", low, high)
            drawn.append(Row(f"{row['arm']}, seed {row['seed']}", (mark,), f"{mark.value:.3f}"))
    seeds = len({row["seed"] for row in rows})
    converted = sorted(row["test_spearman"] for row in rows if row["mixer"] != "softmax")
    text = (
        f"The original has a rank correlation of {original:.3f} with human judgments, converted "
        f"models have {converted[0]:.3f} to {converted[-1]:.3f}. The original is all-MiniLM-L6-v2 "
        "(6 layers, 384 channels). The score is Spearman's correlation of cosines and relatedness "
        f"on the 4,927 test pairs of SICK, after {content['steps']} steps of "
        f"{content['batch_size']} pairs; {seeds} seed{'s' * (seeds > 1)}. The sentences have 10 "
        "words on average. Bars are 95 % intervals of the difference from the original (dashed), "
        "by a paired bootstrap over pairs."
    )
    return Section("Converting a trained sentence encoder", text, "conversion",
                   dots("Spearman correlation", drawn, original), rows, [result],
                   ["make trained-models",
                    "python benchmarks/conversion.py --data shared/data"])  # fmt: skip
