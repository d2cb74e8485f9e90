"""Measure layers with a padding mask, causal layers and dropout, next to the plain layer.

python benchmarks/layer_forms.py
python benchmarks/layer_forms.py --device cuda --dtype bfloat16
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from harness import Content, comma_separated, gradients, inference, run
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.lab.runs.measure import median_seconds, peak_memory
from rifflemix.mixers import HEADLINE
from rifflemix.ops.dispatch import prefer_backend

# A batch of texts of several lengths, padded to the longest.
LENGTHS, DIM, HEADS = (1024, 768, 512, 256), 256, 4
FORMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "padded": {"padded": True},
    "causal": {"causal": True},
    "dropout": {"dropout": 0.1},
    "padded, dropout": {"padded": True, "dropout": 0.1},
}


def rows_of(mixer: str, repeats: int, like: Tensor) -> list[dict[str, Any]]:
    """Measure the variants of a mixer on tokens of the shape, type and device of a tensor."""
    length, device = max(LENGTHS), like.device
    x = torch.randn_like(like)
    padding = torch.arange(length, device=device) >= torch.tensor(LENGTHS, device=device)[:, None]
    calls, memory = {}, {}
    for form, given in FORMS.items():
        options = {name: value for name, value in given.items() if name != "padded"}
        if options.get("causal") and not rm.mixer_card(mixer).causal:
            continue
        layer = rm.create_mixer(mixer, DIM, num_heads=HEADS, max_length=length, **options).to(like)
        mask = padding if given.get("padded") else None
        evaluated, trained = (
            partial(_call, layer, x, mask, training=training) for training in (False, True)
        )
        calls[f"{form}, forward"] = inference(evaluated)
        calls[f"{form}, training"] = gradients([x, *layer.parameters()], trained)
        memory[form] = peak_memory(calls[f"{form}, training"], device)
    taken, rows = median_seconds(calls, device, repeats=repeats), []
    for form, peak in memory.items():
        seconds = {f"{way}_seconds": taken[f"{form}, {way}"] for way in ("forward", "training")}
        rows.append({"mixer": mixer, "form": form, **seconds, "training_memory_bytes": peak})
        print(mixer, form, *(f"{1e3 * min(times):.1f}" for times in seconds.values()), "ms")
    return rows


def _call(layer: nn.Module, x: Tensor, mask: Tensor | None, *, training: bool) -> Tensor:
    y: Tensor = layer.train(training)(x, key_padding_mask=mask)
    return y


def measure(arguments: argparse.Namespace) -> Iterator[Content]:
    """Measure all mixers."""
    dtype = getattr(torch, arguments.dtype)
    like = torch.empty(len(LENGTHS), max(LENGTHS), DIM, device=arguments.device, dtype=dtype)
    with prefer_backend(arguments.backend):
        rows = [
            row for mixer in arguments.mixers for row in rows_of(mixer, arguments.repeats, like)
        ]
    settings = {"lengths": LENGTHS, "dim": DIM, "heads": HEADS}
    yield {**settings, "dtype": arguments.dtype, "backend": arguments.backend, "rows": rows}


if __name__ == "__main__":
    OPTIONS: dict[str, dict[str, Any]] = {
        "--mixers": {"type": comma_separated(), "default": HEADLINE},
        "--repeats": {"type": int, "default": 7},
        "--device": {"choices": ("cpu", "cuda"), "default": "cpu"},
        "--dtype": {"choices": ("float32", "bfloat16"), "default": "float32"},
        "--backend": {"choices": ("auto", "eager"), "default": "auto"},
    }
    run("layer-forms", __doc__, measure, OPTIONS)
