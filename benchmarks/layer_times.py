"""Measure layers on the GPU, next to softmax attention and two linear layers.

Calls are captured into a graph and replayed, without the time of Python and launching. `rifflemix
bench scaling` includes that time. Models that train through graphs have the times of this script.

    python benchmarks/layer_times.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from harness import Content, graph_times, run

from rifflemix.lab.bench.layers import SOFTMAX, layer_candidates
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Settings

_MIXERS = ("softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn")


def measure(shape: Shape, settings: Settings) -> list[dict[str, Any]]:
    """Time every layer after a comparison of its outputs with the eager backend."""
    rows: list[dict[str, Any]] = []
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
        print(shape.tokens, row["name"], row.get("error", ""), flush=True)
        for name in ("forward", "forward_backward"):
            if "median" in row.get(name, ()) and "median" in softmax.get(name, ()):
                row[name]["x_softmax"] = row[name]["median"] / softmax[name]["median"]
                print(f"  {name} {1e6 * row[name]['median']:.1f} us, {row[name]['x_softmax']:.2f}x")
    return rows


def measure_all(arguments: argparse.Namespace) -> Iterator[Content]:
    """Measure all lengths; yield after each."""
    settings = Settings(dtype=arguments.dtype, device="cuda")
    rows: list[dict[str, Any]] = []
    for tokens in arguments.tokens:
        rows += measure(Shape(8, tokens, 512, 8), settings)
        yield {"batch": 8, "channels": 512, "heads": 8, "dtype": arguments.dtype, "rows": rows}


if __name__ == "__main__":
    OPTIONS: dict[str, dict[str, Any]] = {
        "--tokens": {"type": int, "nargs": "+", "default": [1024, 4096, 16384]},
        "--dtype": {"choices": ("bfloat16", "float32"), "default": "bfloat16"},
    }
    run("layer-times", __doc__, measure_all, OPTIONS, needs_gpu=True)
