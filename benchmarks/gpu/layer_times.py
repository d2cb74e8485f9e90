"""How long the GPU itself takes for whole layers, beside softmax attention and two linear maps.

Calls are captured into a graph and replayed: what is left out is Python and launching, which
`rifflemix bench scaling` has in. A model that is trained through graphs sees these times.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from device_times import seconds_of

from rifflemix.files import write_json
from rifflemix.lab.bench.layers import SOFTMAX, layer_candidates
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Settings
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.measure import median

FORMAT = "rifflemix.layer-times/1"
_MIXERS = ("softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn")


def measure(shape: Shape, settings: Settings) -> list[dict[str, Any]]:
    """A row for each layer; it agrees on 256 tokens with its eager form before it is timed."""
    rows: list[dict[str, Any]] = []
    for candidate in layer_candidates(_MIXERS, (), settings):
        row: dict[str, Any] = {"name": candidate.name, "tokens": shape.tokens}
        try:
            failed = [c for c in candidate.gate(shape) if not c.passed]
            if failed:
                raise ArithmeticError(failed[0].failure())
            for name, call in candidate.build(shape).passes.items():
                seconds = seconds_of(call, captured=True)
                row[name] = {"seconds": seconds, "median": median(seconds)}
        except Exception as error:  # what cannot be captured, or a kernel that is refused
            row["error"] = str(error).splitlines()[0][:200]
        rows.append(row)
        torch.cuda.empty_cache()
    softmax = next(row for row in rows if row["name"] == SOFTMAX)
    for row in rows:
        for name in ("forward", "forward_backward"):
            if name in row and name in softmax:
                row[name]["x_softmax"] = row[name]["median"] / softmax[name]["median"]
        print(shape.tokens, row["name"], row.get("error", ""), *_shown(row), flush=True)
    return rows


def _shown(row: dict[str, Any]) -> list[str]:
    return [
        f"{name} {1e6 * row[name]['median']:.1f} us, {row[name].get('x_softmax', 0):.2f} x softmax"
        for name in ("forward", "forward_backward")
        if name in row
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a GPU that torch can use, found none: run it where one is")
    settings = Settings(dtype=arguments.dtype, device="cuda")
    rows: list[dict[str, Any]] = []
    for tokens in arguments.tokens:
        rows += measure(Shape(8, tokens, 512, 8), settings)
        result = {
            "format": FORMAT,
            "environment": environment(),
            "batch": 8,
            "channels": 512,
            "heads": 8,
            "dtype": arguments.dtype,
            "rows": rows,
        }
        write_json(arguments.out, result)


if __name__ == "__main__":
    main()
