"""Measure linear recurrences on a CPU, next to the projections of a layer.

Every variant of `rifflemix.ops.linear_recurrence` runs with its eager and its compiled backend. The
gated delta rule also runs in the torch code of transformers, if transformers is installed.

python benchmarks/recurrence.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import Call, Content, comma_separated, gradients, inference, run
from torch import Tensor, nn

from rifflemix.lab.runs.environment import describe_hardware, environment
from rifflemix.lab.runs.measure import median, median_seconds
from rifflemix.ops import linear_recurrence

BACKENDS = ("eager", "cpu")


def variants(length: int, heads: int, size: int) -> dict[str, dict[str, Any]]:
    """Draw the options of every variant."""
    shape = (1, heads, length)
    scalar, vector = -torch.rand(shape), -torch.rand(*shape, size)
    beta = torch.rand(shape)
    key = F.normalize(torch.randn(*shape, size), dim=-1)
    return {
        "linear attention": {},
        "scalar decay": {"log_decay": scalar},
        "vector decay": {"log_decay": vector},
        "delta rule": {"beta": beta},
        "gated delta rule": {"log_decay": scalar, "beta": beta},
        "vector decay and erase": {"log_decay": vector, "erase": (key * vector.exp(), key)},
    }


def calls(length: int, dim: int, heads: int) -> Iterator[tuple[str, str, list[Tensor], Call]]:
    """Yield name, backend, inputs and call of every measurement."""
    size = dim // heads
    q, k, v = (torch.randn(1, length, heads, size).transpose(1, 2) for _ in range(3))
    k = F.normalize(k, dim=-1)
    x = torch.randn(1, length, dim)
    layers = nn.ModuleList([nn.Linear(dim, dim) for _ in range(4)])
    yield "4 projections", "torch", [x, *layers.parameters()], partial(sum_of, layers, x)
    for name, options in variants(length, heads, size).items():
        tensors = [q, k, v, *(t for t in options.values() if isinstance(t, Tensor))]
        tensors += options.get("erase", ())
        for backend in BACKENDS:
            call = partial(linear_recurrence, q, k, v, **options, backend=backend)
            yield name, backend, tensors, call
        if name == "gated delta rule" and (other := chunked_by_transformers()) is not None:
            by_token = [t.transpose(1, 2).detach() for t in tensors]
            yield name, "transformers", by_token, partial(first_of, other, *by_token)


def sum_of(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return torch.stack([layer(x) for layer in layers]).sum(0)


def first_of(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    y: Tensor = function(*arguments)[0]
    return y


def chunked_by_transformers() -> Callable[..., Any] | None:
    """Return the torch code of Qwen3-Next's gated delta rule, or None."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "surgery"))
    from torchvision_shim import declare_operators

    declare_operators()
    try:
        from transformers.models.qwen3_next import modeling_qwen3_next
    except ImportError:
        return None
    found: Callable[..., Any] = modeling_qwen3_next.torch_chunk_gated_delta_rule
    return found


def measure(arguments: argparse.Namespace) -> Iterator[Content]:
    """Measure all calls at all lengths."""
    rows = []
    for length in arguments.lengths:
        torch.manual_seed(0)
        for name, backend, tensors, call in calls(length, arguments.dim, arguments.heads):
            ways = {"forward": inference(call), "training": gradients(tensors, call)}
            taken = median_seconds(ways, torch.device("cpu"), repeats=5, max_seconds=6.0)
            row = {f"{way}_seconds": median(times) for way, times in taken.items()}
            print(length, name, backend, row, flush=True)
            rows.append({"name": name, "backend": backend, "tokens": length, **row})
    yield {
        "dim": arguments.dim,
        "heads": arguments.heads,
        "rows": rows,
        "hardware": describe_hardware(environment()),
    }


if __name__ == "__main__":
    OPTIONS: dict[str, dict[str, Any]] = {
        "--lengths": {"type": comma_separated(int), "default": [1024, 4096]},
        "--dim": {"type": int, "default": 512},
        "--heads": {"type": int, "default": 8},
    }
    run("recurrence", __doc__, measure, OPTIONS)
