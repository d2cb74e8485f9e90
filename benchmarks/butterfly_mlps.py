"""Butterfly MLPs beside dense ones: time and memory of layers by width, and of whole MLP-Mixers.

    python benchmarks/butterfly_mlps.py --out benchmarks/results

writes a new file there; `python docs/write_results.py` draws it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm
from rifflemix.files import make_folder
from rifflemix.lab.bench.rows import write_dated
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.measure import median, median_seconds, peak_memory
from rifflemix.nn.butterfly import ButterflyLinearMLP, ButterflyMLP
from rifflemix.nn.feed_forward import FeedForward

WIDTHS = (64, 121, 256, 529, 1024, 2304, 4096)
EXPANSION = 2
NUMBERS, BATCH = 1 << 19, 64  # in a layer's input; images of a step
CPU = torch.device("cpu")
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "dense": lambda width: FeedForward(width, EXPANSION * width),
    "butterfly_linear": lambda width: ButterflyLinearMLP(width, math.isqrt(width), EXPANSION),
    "butterfly_mlp": lambda width: ButterflyMLP(width, math.isqrt(width), EXPANSION),
}


def layer_rows(width: int, repeats: int) -> list[dict[str, Any]]:
    """Inference, training and training memory of the three layers."""
    x = torch.randn(NUMBERS // width, width, requires_grad=True)
    grad = torch.randn_like(x)
    layers = {name: make(width) for name, make in LAYERS.items()}
    rows = _rows(layers, x, lambda layer: _backward(layer, x, grad), repeats)
    return [{"width": width, **row} for row in rows]


def model_rows(expansion: int, repeats: int) -> list[dict[str, Any]]:
    """The same of the models of Dimension Mixer's Table 3; a training step with Adam's."""
    models = {name: rm.create_model(f"mlp_mixer_{name}_e{expansion}") for name in LAYERS}
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    optimizers = {id(m): torch.optim.Adam(m.parameters(), fused=True) for m in models.values()}

    def step(model: nn.Module) -> None:
        optimizers[id(model)].zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizers[id(model)].step()

    return [{"expansion": expansion, **row} for row in _rows(models, images, step, repeats)]


def _backward(layer: nn.Module, x: Tensor, grad: Tensor) -> Sequence[Tensor]:
    return torch.autograd.grad(layer(x), [x, *layer.parameters()], grad)


def _rows(
    modules: Mapping[str, nn.Module], x: Tensor, train: Callable[[nn.Module], object], repeats: int
) -> list[dict[str, Any]]:
    calls: dict[str, Callable[[], object]] = {}
    for name, module in modules.items():
        calls[f"{name} forward"] = partial(_infer, module, x)
        calls[f"{name} training"] = partial(train, module)
    took = median_seconds(calls, CPU, repeats=repeats)
    rows = []
    for name, module in modules.items():
        rows.append({
            "mlp": name,
            "parameters": sum(p.numel() for p in module.parameters()),
            "forward_seconds": median(took[f"{name} forward"]),
            "training_seconds": median(took[f"{name} training"]),
            "training_memory_bytes": peak_memory(calls[f"{name} training"], CPU),
        })  # fmt: skip
        print(rows[-1])
    return rows


def _infer(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y: Tensor = module(x)
    return y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=lambda t: [int(n) for n in t.split(",")], default=WIDTHS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    make_folder(arguments.out)
    torch.set_num_threads(1)
    result = {
        "format": "rifflemix.butterfly-mlps/1",
        "environment": environment(),
        "models": [row for e in (1, 2) for row in model_rows(e, arguments.repeats)],
        "layers": [row for w in arguments.widths for row in layer_rows(w, arguments.repeats)],
    }
    path = write_dated(arguments.out, "butterfly-mlps", result)
    print(path)


if __name__ == "__main__":
    main()
