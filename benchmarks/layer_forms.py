"""Layers with a padding mask, causal, and with dropout, beside the plain ones.

    python benchmarks/layer_forms.py --out benchmarks/results

on one thread of a CPU writes a new file there; `python docs/write_results.py` draws it. With
`--device cuda` the file has another name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.files import make_folder
from rifflemix.lab.bench.rows import write_dated
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.measure import median_seconds, peak_memory
from rifflemix.mixers import HEADLINE
from rifflemix.ops.dispatch import prefer_backend

# A batch of texts of several lengths, padded to the longest.
LENGTHS, DIM, HEADS = (1024, 768, 512, 256), 256, 4
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"padded": True},
    "causal": {"causal": True},
    "dropout": {"dropout": 0.1},
    "padded, dropout": {"padded": True, "dropout": 0.1},
}
WAYS = ("forward", "training")


def rows_of(mixer: str, repeats: int, like: Tensor) -> list[dict[str, Any]]:
    """Inference, training and training memory of the forms that a mixer has."""
    length, device = max(LENGTHS), like.device
    x = torch.randn_like(like, requires_grad=True)
    grad = torch.randn_like(x)
    padding = torch.arange(length, device=device) >= torch.tensor(LENGTHS, device=device)[:, None]
    calls: dict[str, Callable[[], object]] = {}
    for form, given in FORMS.items():
        options = {name: value for name, value in given.items() if name != "padded"}
        if options.get("causal") and not rm.mixer_card(mixer).causal:
            continue
        layer = rm.create_mixer(mixer, DIM, num_heads=HEADS, max_length=length, **options).to(like)
        mask = padding if given.get("padded") else None
        calls[f"{form} forward"] = partial(_infer, layer, x, mask)
        calls[f"{form} training"] = partial(_train, layer, x, mask, grad)
    took = median_seconds(calls, device, repeats=repeats)
    rows = []
    for form in (form for form in FORMS if f"{form} forward" in calls):
        rows.append({
            "mixer": mixer,
            "form": form,
            "forward_seconds": took[f"{form} forward"],
            "training_seconds": took[f"{form} training"],
            "training_memory_bytes": peak_memory(calls[f"{form} training"], device),
        })  # fmt: skip
        print(mixer, form, *(f"{1e3 * min(took[f'{form} {way}']):.1f}" for way in WAYS), "ms")
    return rows


def _infer(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    with torch.no_grad():
        y: Tensor = layer.eval()(x, key_padding_mask=mask)
    return y


def _train(layer: nn.Module, x: Tensor, mask: Tensor | None, grad: Tensor) -> Sequence[Tensor]:
    y: Tensor = layer.train()(x, key_padding_mask=mask)
    return torch.autograd.grad(y, [x, *layer.parameters()], grad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixers", type=lambda text: text.split(","), default=HEADLINE)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--backend", choices=("auto", "eager"), default="auto")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    make_folder(arguments.out)
    torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    like = torch.empty(len(LENGTHS), max(LENGTHS), DIM, device=arguments.device, dtype=dtype)
    with prefer_backend(arguments.backend):
        rows = [
            row for mixer in arguments.mixers for row in rows_of(mixer, arguments.repeats, like)
        ]
    result = {
        "format": "rifflemix.layer-forms/1",
        "environment": environment(),
        "lengths": LENGTHS,
        "dim": DIM,
        "heads": HEADS,
        "dtype": arguments.dtype,
        "backend": arguments.backend,
        "rows": rows,
    }
    name = "layer-forms" if arguments.device == "cpu" else "gpu-layer-forms"
    path = write_dated(arguments.out, name, result)
    print(path)


if __name__ == "__main__":
    main()
