"""Made-up benchmark results in the format of rifflemix.lab.bench."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rifflemix.lab.bench.rows import Row, Shape, add_ratios, assemble, timing
from rifflemix.lab.bench.scaling import BASELINE, FLOOR, growth

PASSES = ("forward", "forward_backward")
TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)


CLAIMS = {"softmax": 2.0, "csp": 1.0, "tssa": 1.0}


def scaling(
    names: list[str], *, peers: tuple[str, ...] = (), tokens: tuple[int, ...] = TOKENS
) -> dict[str, Any]:
    """Build quadratic times for softmax and linear times for the other mixers.

    Softmax has no result at the largest size. Third-party packages (`peers`) are slower than any
    layer.
    """
    rows = []
    for n in tokens:
        here = [_row("layer", name, n, _seconds(i, name, n)) for i, name in enumerate(names)]
        here += [_row("peer", name, n, _seconds(10 + i, "", n)) for i, name in enumerate(peers)]
        for row in here:
            if row.name == "softmax" and len(tokens) > 2 and n == tokens[-1]:
                row.passes, row.status, row.note = {}, "left out", "forward would take too long"
        add_ratios(here, (FLOOR, BASELINE))
        rows += here
    details = {"dtype": "float32", "device": "cpu", "batch": 1, "dim": 512, "heads": 8}
    result = assemble("scaling", details, rows, complete=True, wall_seconds=75.0)
    peer = {"name": "linformer", "version": None, "takes_part": False, "detail": "not installed"}
    return result | {"growth": growth(rows, CLAIMS), "peers": [peer]}


def ops() -> dict[str, Any]:
    """Build two operators: one with two backends, one that failed."""
    shape = Shape(1, 64, 16, 2)
    rows = [
        _row("operator", "copy", 64, 1e-3),
        replace(_row("operator", "group_sort", 64, 8e-3), backend="eager"),
        replace(_row("operator", "group_sort", 64, 2e-3), backend="cpu"),
        Row("operator", "wrong|one", "cpu", shape, status="failed", note="error is 1"),
    ]
    add_ratios(rows, (("operator", "copy"),))
    details = {"dtype": "float32", "device": "cpu"}
    return assemble("ops", details, rows, complete=False, wall_seconds=3.0)


def models() -> dict[str, Any]:
    """Build one training step of one model."""
    row = _row("model", "tssa", 64, 0.5)
    row.passes = {"training_step": row.passes["forward"]}
    row.extra = {
        "samples_per_second": 2.0,
        "forward_samples_per_second": 8.0,
        "tokens_per_second": 128.0,
        "kernel_share": 0.5,
        "parameters": 1234,
    }
    details = {"dtype": "float32", "device": "cpu"}
    return assemble("models", details, [row], complete=True, wall_seconds=3.0)


def _seconds(i: int, name: str, tokens: int) -> float:
    if name == "softmax":
        return 4e-9 * tokens**2
    if name == "two linear maps":
        return 1e-7 * tokens
    return 4e-7 * (1.35**i) * tokens


def _row(kind: str, name: str, tokens: int, seconds: float) -> Row:
    row = Row(kind, name, None, Shape(1, tokens, 16, 2))
    row.passes = {n: timing([seconds, 1.1 * seconds, seconds], 4 * tokens) for n in PASSES}
    return row
