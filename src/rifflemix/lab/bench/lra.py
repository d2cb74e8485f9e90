"""`rifflemix bench lra`: speed and memory of the models in the Sliceformer paper's Table III."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.bench.layers import CLASSES
from rifflemix.lab.bench.models import Subject
from rifflemix.lab.bench.rows import MODEL, Shape
from rifflemix.lab.bench.runner import Group, Hooks, Settings, run_benchmark
from rifflemix.lab.recipes import lra
from rifflemix.models import create_model, model_settings

LENGTHS = (1024, 2048, 3072, 4096)
"""N for the paper's 1K, 2K, 3K and 4K (the paper does not give exact numbers)."""


def _read() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with Path(__file__).with_name("printed_speed.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            row = found.setdefault(line["mixer"], {"title": line["title"]})
            values = {str(n): line[str(n)] for n in LENGTHS}
            row[line["measure"]] = {n: None if v == "OOM" else float(v) for n, v in values.items()}
    return found


PRINTED = _read()
"""Mixer -> title in the paper, and values by N.

Values are "training_step" and "forward" in steps per second and peak "memory" in GB. None means
that the paper reports OOM.
"""

SOFTMAX = "softmax"
DEFAULT_BATCH = 32
_MODEL = "lra_text"


def run(
    tokens: Sequence[int] = LENGTHS,
    *,
    batch: int = DEFAULT_BATCH,
    mixers: Sequence[str] | None = None,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure training and inference of the Long Range Arena's Text models.

    Args:
        tokens: values of N to measure, each once; the paper uses 1K to 4K.
        batch: batch size; the paper does not give one.
        mixers: mixers of the table by registry name, all by default; softmax is always included.
        settings: data type, device, number of timings and limits.
        hooks: callbacks for progress, stopping and saving.

    Returns:
        Result in the format of benchmarks/README.md. Rows have the kind "model", as in
        `rifflemix bench models`, with ratios to "softmax". "printed" contains the values that the
        paper reports, by name and N.

    Raises:
        InputError: a mixer that is not in the table, or a setting out of range.
    """
    if not tokens or len(set(tokens)) != len(tokens):
        raise bad_argument("tokens", "at least one number, each only once", list(tokens))
    names = list(PRINTED) if mixers is None else list(mixers)
    for name in names:
        check_choice("mixers", name, PRINTED)
    names = [SOFTMAX, *(name for name in names if name != SOFTMAX)]
    settings = settings or Settings()
    sizes = model_settings(_MODEL)
    candidates = [Subject(name, partial(_model, name)).candidate(settings) for name in names]
    groups = [
        Group(Shape(batch, n, sizes["dim"], sizes["num_heads"]), candidates, ((MODEL, SOFTMAX),))
        for n in sorted(tokens)
    ]
    details = {"model": _MODEL, "batch": batch, "tokens": sorted(tokens), "mixers": names}
    return run_benchmark(
        "lra",
        groups,
        settings,
        details,
        hooks=hooks,
        summarise=lambda rows: {"printed": {name: PRINTED[name] for name in names}},
    )


def _model(name: str, shape: Shape) -> nn.Module:
    """Build the Text model of a mixer for N bytes."""
    if name == "sliceformer":
        settings: dict[str, Any] = {
            "mixer": name,
            "mixer_options": {"variant": "ascending", "heads": shape.heads, "out_bias": False},
            "padding": "unmasked",
            "padding_id": None,
        }
    else:
        settings = lra.row_settings(name, "text")
    return create_model(_MODEL, **settings, num_classes=CLASSES, max_length=shape.tokens)
