"""Write docs/try.html, a page without a server: patterns of mixers, and what they cost.

It holds the schedules as the operators make them and the newest measured times; its script only
puts them together. With `#all` behind its address it lists every pattern as text.

    python docs/write_try.py
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import rifflemix as rm
from rifflemix.lab.bench.tables import crossover_text

FOLDER = Path(__file__).resolve().parent
PAGE, TEMPLATE = FOLDER / "try.html", FOLDER / "site" / "try.html"
LENGTHS, GROUPS, KINDS = (8, 16, 32, 64), (2, 4, 8), ("linear", "power", "none")
CHANNELS, LAYERS = 16, 6
MIXERS = ("csp", "sliceformer", "tssa", "butterfly", "sinkhorn", "softmax")


def data() -> dict[str, Any]:
    """Schedules by N, group size and kind; times by mixer and N."""
    writer = _mixers_writer()
    path, result = writer.newest_scaling()
    titles = {name: rm.mixer_card(name).title for name in MIXERS}
    return {
        "channels": CHANNELS,
        "layers": LAYERS,
        "titles": titles,
        "steps": {kind: {n: _steps(kind, n) for n in LENGTHS} for kind in KINDS},
        "strides": {n: {g: rm.ops.butterfly_strides(n, g) for g in GROUPS} for n in LENGTHS},
        "source": path.name,
        "times": {
            name: [
                [tokens, passes["forward"]["p50"], passes["forward_backward"]["p50"]]
                for tokens, passes in writer.passes_by_tokens(result, name).items()
            ]
            for name in MIXERS
        },
        "crossovers": {
            entry["name"]: crossover_text(entry["crossover"])
            for entry in result["growth"]
            if entry["kind"] == "layer" and entry["pass"] == "forward_backward"
            and entry["name"] in MIXERS and entry["crossover"] is not None
        },
    }  # fmt: skip


def page() -> str:
    """The whole page; "<" is escaped so that no value can end the script."""
    values = json.dumps(data(), separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", values)


def _steps(kind: str, tokens: int) -> list[list[int]]:
    return [
        rm.ops.shift_steps(kind, tokens, CHANNELS, layer_index=i, num_layers=LAYERS).tolist()
        for i in range(LAYERS)
    ]


def _mixers_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_mixers", FOLDER / "write_mixers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
