"""docs/try.html: patterns of mixers and their cost, in a page that needs no server.

The page contains the schedules of the operators and the newest measured times. With `#all` after
its address it lists every pattern as text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import BUILD, DOCS, newest_benchmark, passes_by_tokens

import rifflemix as rm
from rifflemix.lab.bench.tables import crossover_text

PAGE, TEMPLATE = DOCS / "try.html", BUILD / "try.html"
LENGTHS, GROUPS, KINDS = (8, 16, 32, 64), (2, 4, 8), ("linear", "power", "none")
CHANNELS, LAYERS = 16, 6
MIXERS = ("csp", "sliceformer", "tssa", "butterfly", "sinkhorn", "softmax")


def data() -> dict[str, Any]:
    """Schedules by N, group size and kind; times by mixer and N."""
    scaling = newest_benchmark("scaling")
    titles = {name: rm.mixer_card(name).title for name in MIXERS}
    return {
        "channels": CHANNELS,
        "layers": LAYERS,
        "titles": titles,
        "steps": {kind: {n: _steps(kind, n) for n in LENGTHS} for kind in KINDS},
        "strides": {n: {g: rm.ops.butterfly_strides(n, g) for g in GROUPS} for n in LENGTHS},
        "source": scaling.name,
        "times": {
            name: [
                [tokens, passes["forward"]["p50"], passes["forward_backward"]["p50"]]
                for tokens, passes in passes_by_tokens(scaling.content, name).items()
            ]
            for name in MIXERS
        },
        "crossovers": {
            entry["name"]: crossover_text(entry["crossover"])
            for entry in scaling.content["growth"]
            if entry["kind"] == "layer" and entry["pass"] == "forward_backward"
            and entry["name"] in MIXERS and entry["crossover"] is not None
        },
    }  # fmt: skip


def files() -> dict[Path, str]:
    """Return the page; "<" is escaped so that no value can end the script."""
    values = json.dumps(data(), separators=(",", ":")).replace("<", "\\u003c")
    return {PAGE: TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", values)}


def _steps(kind: str, tokens: int) -> list[list[int]]:
    return [
        rm.ops.shift_steps(kind, tokens, CHANNELS, layer_index=i, num_layers=LAYERS).tolist()
        for i in range(LAYERS)
    ]
