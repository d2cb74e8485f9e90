"""Measure layers on the GPU, next to softmax attention and two linear layers.

Calls are captured into a graph and replayed, without the time of Python and launching. `rifflemix
bench scaling` includes that time. Models that train through graphs have the times of this script.

    python benchmarks/layer_times.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from harness import Rows, graph_times, run

from rifflemix.lab.bench.layers import SOFTMAX, layer_candidates
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Settings

_MIXERS = ("softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn")


def rows_of(shape: Shape, settings: Settings) -> Rows:
    """Time every layer after a comparison of its outputs with the eager backend."""
    rows: Rows = []
    for candidate in layer_candidates(_MIXERS, (), settings):
        row: dict[str, Any] = {"name": candidate.name, "tokens": shape.tokens}
        if failed := [check for check in candidate.gate(shape) if not check.passed]:
            row["error"] = failed[0].failure()
        else:
            row |= {name: graph_times(call) for name, call in candidate.build(shape).passes.items()}
        rows.append(row)
        torch.cuda.empty_cache()
    softmax = next(row for row in rows if row["name"] == SOFTMAX)
    for row in rows:
        for name in ("forward", "forward_backward"):
            if "median" in row.get(name, ()) and "median" in softmax.get(name, ()):
                row[name]["x_softmax"] = row[name]["median"] / softmax[name]["median"]
        print(row, flush=True)
    return rows


def measure(
    tokens: tuple[int, ...] = (1024, 4096, 16384), dtype: str = "bfloat16"
) -> Iterator[dict[str, Any]]:
    """Measure all lengths; yield after each."""
    settings = Settings(dtype=dtype, device="cuda")
    rows: Rows = []
    for length in tokens:
        rows += rows_of(Shape(8, length, 512, 8), settings)
        yield {"batch": 8, "channels": 512, "heads": 8, "dtype": dtype, "rows": rows}


if __name__ == "__main__":
    run("layer-times", __doc__, measure, needs_gpu=True)
