"""What docs/results.md says of `bench parallel`: memory of a process, bytes that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results_pictures import Curve, curves

from rifflemix.lab.report.units import format_rate


def told(result: Mapping[str, Any]) -> tuple[str, str, list[dict[str, Any]]]:
    """A sentence, a picture and the lines of a table."""
    table = [_line(row) for row in result["rows"] if "alone" in row["passes"]]
    drawn = {
        name: tuple(
            (float(at["tokens"]), at["x_one_process"]) for at in table if at["mixer"] == name
        )
        for name in result["settings"]["mixers"]
    }
    processes, tokens = result["settings"]["processes"], max(line["tokens"] for line in table)
    last = [line for line in table if line["tokens"] == tokens]
    shares = sorted(line["x_one_process"] for line in last if line["sent_bytes_per_token"])
    sent = sorted((line["sent_bytes_per_token"], line["mixer"]) for line in last)
    (least, least_name), (most, most_name) = next(pair for pair in sent if pair[0]), sent[-1]
    inexact = sorted({line["mixer"] for line in table if line["sent_bytes_per_token"]
                      != line["formula_bytes_per_token"]})  # fmt: skip
    says = (
        f"At {tokens:,} tokens each of {processes} processes holds between {shares[0]:.2g} and "
        f"{shares[-1]:.2g} of the memory that one process needs for the whole sequence. In the "
        f"forward pass it sends between {format_rate(least)} bytes ({least_name}) and "
        f"{format_rate(most)} ({most_name}) for each token it holds, as [the formulas](scale.md) "
        f"say; for {' and '.join(inexact) or 'none'} these are upper bounds. Peak of a forward and "
        "backward pass, relative to one process."
    )
    picture = curves(
        f"Training memory of one of {processes} processes over N, x one alone",
        [Curve(name, points) for name, points in drawn.items() if points],
        rule=1.0,
    )
    return says, picture, table


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    passes, extra = row["passes"], row["extra"]
    held, alone = (passes[name]["peak_memory_bytes"] for name in ("forward_backward", "alone"))
    here = row["shape"]["batch"] * row["shape"]["tokens"] / extra["processes"]
    return {
        "mixer": row["name"],
        "tokens": row["shape"]["tokens"],
        "processes": extra["processes"],
        "memory_bytes": held,
        "x_one_process": held / alone,
        "ms": 1e3 * passes["forward_backward"]["p50"],
        "one_process_ms": 1e3 * passes["alone"]["p50"],
        "sent_bytes_per_token": extra["sent_bytes_per_token"],
        "formula_bytes_per_token": extra["expected_bytes"] / here,
    }
