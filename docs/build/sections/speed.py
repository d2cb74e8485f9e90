"""Sections on the speed and memory of layers."""

from __future__ import annotations

import pandas as pd
from charts import Curve, curves
from common import Section, listed, newest_benchmark, passes_by_tokens, training
from store import newest

from rifflemix.lab.bench import decode
from rifflemix.mixers import HEADLINE
from rifflemix.text import code, table_lines


def speed() -> Section:
    """Show the time of a layer over the number of tokens."""
    result = newest_benchmark("scaling")
    content = result.content
    table = [
        {
            "mixer": name,
            "tokens": tokens,
            **{f"{kind}_ms": 1e3 * passes[kind]["p50"] for kind in passes},
            **{f"{kind}_x_softmax": passes[kind]["ratios"].get("softmax") for kind in passes},
        }
        for name in HEADLINE
        for tokens, passes in passes_by_tokens(content, name).items()
    ]
    lengths = content["settings"]["tokens"]
    text = (
        f"With each mixer of the five papers, a layer of {content['settings']['dim']} channels "
        f"trains faster on a CPU than softmax attention, from {min(lengths):,} tokens on. "
        "[Speed and memory](performance.md) has all times."
    )
    return Section("Training time", text, "speed", table, [result], "speed.svg")


def memory() -> Section:
    """Show the training memory of a layer relative to softmax attention."""
    result = newest_benchmark("scaling")
    peaks = training(result.content, "peak_memory_bytes", HEADLINE)
    base = peaks["softmax"]
    ratios = {
        name: {tokens: peak / base[tokens] for tokens, peak in of.items() if tokens in base}
        for name, of in peaks.items()
    }
    table = [
        {
            "mixer": name, "tokens": tokens, "training_memory_bytes": peak,
            "x_softmax": ratios[name].get(tokens),
        }
        for name, of in peaks.items()
        for tokens, peak in of.items()
    ]  # fmt: skip
    less = [name for name, of in ratios.items() if list(of.values())[-1] < 1]
    text = (
        f"At {max(base):,} tokens, {len(less)} of {len(ratios) - 1} mixers need less memory than "
        "softmax attention. PyTorch's fused attention stores no N x N matrix, so its memory is "
        "also linear in N, except with dropout."
    )
    headers = ["relative memory (lower is better)", *(f"N={tokens:,}" for tokens in base)]
    rows = [[code(name), *(f"{of:.2f}" for of in each.values())] for name, each in ratios.items()]
    below = "\n".join(table_lines(headers, rows, range(1, len(headers))))
    return Section("Training memory", text, "memory", table, [result], below=below)


def decoding() -> Section:
    """Show the speed of a decoding step after a long context."""
    result = newest("decode-*")
    content = result.content
    table = [
        {
            "layer": row["name"],
            "context": row["shape"]["tokens"],
            "tokens_per_second": row["extra"]["tokens_per_second"],
            "ms": 1e3 * row["passes"]["step"]["p50"],
            "x_softmax_in_place": row["passes"]["step"]["ratios"].get(decode.IN_PLACE),
            "state_bytes": row["extra"]["state_bytes"],
        }
        for row in content["rows"]
        if row["passes"]
    ]
    by_layer = pd.DataFrame(table).groupby("layer")[["context", "tokens_per_second"]]
    rates = {
        name: tuple(by_layer.get_group(name).itertuples(index=False, name=None))
        for name in (decode.IN_PLACE, "csp", "sliceformer", "tssa", "linear", "local")
    }
    (near, first), *_, (far, slowest) = rates[decode.IN_PLACE]
    words = [
        f"{name} {points[-1][1] / slowest:,.0f}x"
        for name, points in rates.items()
        if name != decode.IN_PLACE
    ]
    least = min(points[0][1] / first for points in rates.values())
    text = (
        f"After {far:,} tokens, a layer decodes faster than softmax attention: {listed(words)}. "
        f"After {near:,} tokens, the smallest factor is {least:.2g}x, since Python's overhead "
        f"dominates. The layers have {content['settings']['dim']} channels. Softmax "
        "attention writes its cache in place; no other state grows with the context."
    )
    drawn = [Curve(name.split(",")[0], points) for name, points in rates.items()]
    picture = curves("Tokens per second of one layer over the context", drawn, decades=True)
    return Section("Decoding", text, "decoding", table, [result], picture)
