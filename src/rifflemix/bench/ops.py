"""Time and memory of every operator and layer, against a copy and against softmax attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix import ops
from rifflemix.bench.environment import environment
from rifflemix.bench.measure import median, median_seconds, peak_memory
from rifflemix.errors import bad_argument
from rifflemix.mixers import create_mixer, list_mixers

Progress = Callable[[str], None]
COPY, ATTENTION = "copy", "scaled_dot_product_attention"
PROJECTIONS, SOFTMAX_LAYER = "two linear maps", "softmax"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Shape:
    """Batch, tokens, channels and heads of one measurement."""

    batch: int
    tokens: int
    channels: int
    heads: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise bad_argument(f"shape: {name}", "at least 1", value)
        if self.channels % self.heads:
            raise bad_argument(
                "shape: heads", f"a divisor of channels = {self.channels}", self.heads
            )

    def __str__(self) -> str:
        return f"({self.batch}, {self.tokens}, {self.channels})"


DEFAULT_SHAPES = (Shape(1, 1024, 512, 8), Shape(1, 4096, 512, 8))


@dataclass(frozen=True)
class Case:
    """One thing to measure: a call, and the leaves whose gradients its backward makes."""

    name: str
    run: Callable[[], Tensor]
    leaves: tuple[Tensor, ...]

    def forward(self) -> Tensor:
        """The call alone, nothing kept for a backward."""
        with torch.no_grad():
            return self.run()

    def forward_backward(self) -> tuple[Tensor, ...]:
        """The call and the gradients of all its leaves."""
        y = self.run()
        return torch.autograd.grad(y, self.leaves, torch.ones_like(y))


def operator_cases(shape: Shape, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """The bare operators on tensors of the same size, no projections."""
    x = _random((shape.batch, shape.tokens, shape.channels), dtype, device)
    width = shape.channels // shape.heads
    heads = (shape.batch, shape.heads, shape.tokens, width)
    q, k, v, w = (_random(heads, dtype, device) for _ in range(4))
    temperature = torch.ones(shape.heads, dtype=dtype, device=device)
    steps = ops.shift_steps("linear", shape.tokens, shape.channels).to(device)
    pairs = shape.tokens // 2
    calls: dict[str, tuple[Callable[[], Tensor], tuple[Tensor, ...]]] = {
        COPY: (lambda: x.clone(), (x,)),
        ATTENTION: (lambda: F.scaled_dot_product_attention(q, k, v), (q, k, v)),
        "circular_shift": (lambda: ops.circular_shift(x, steps), (x,)),
        "group_sort ascending": (lambda: ops.group_sort(x, order="ascending"), (x,)),
        "group_sort reference": (lambda: ops.group_sort(x), (x,)),
        "max_exchange": (lambda: ops.max_exchange(x), (x,)),
        "token_statistics": (lambda: ops.token_statistics(w, temperature), (w,)),
        "causal_token_statistics": (lambda: ops.causal_token_statistics(w, temperature), (w,)),
    }
    if shape.tokens % 2 == 0:
        calls["group_sort pairs"] = (lambda: ops.group_sort(x, pairs), (x,))
        calls["channel_permute pairs"] = (lambda: ops.channel_permute(x, steps, pairs), (x,))
    return [Case(name, run, leaves) for name, (run, leaves) in calls.items()]


def layer_cases(shape: Shape, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """Every registered mixer as a whole layer, projections included."""
    x = _random((shape.batch, shape.tokens, shape.channels), dtype, device)
    first, second = (
        nn.Linear(shape.channels, shape.channels).to(device, dtype) for _ in range(2)
    )
    maps = (*first.parameters(), *second.parameters())
    cases = [Case(PROJECTIONS, lambda: second(first(x)), (x, *maps))]
    for name in list_mixers():
        mixer = create_mixer(
            name, shape.channels, num_heads=shape.heads, max_length=shape.tokens
        ).to(device, dtype)
        cases.append(Case(name, _call(mixer, x), (x, *mixer.parameters())))
    return cases


def run(
    shapes: tuple[Shape, ...] = DEFAULT_SHAPES,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 5,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure all operators and layers.

    Args:
        shapes: what to measure at.
        dtype: float32, bfloat16 or float64.
        device: "cpu" or "cuda".
        repeats: timings of each call; medians and their ratios are reported.
        progress: told what is being measured.

    Returns:
        environment, settings and rows; a row holds kind (operator or layer), name, shape, and for
        "forward" and "forward_backward" the seconds, their median, its ratio to the copy (for
        layers: to two linear maps) and to softmax attention, and the peak memory in bytes.
    """
    if dtype not in DTYPES:
        raise bad_argument("dtype", ", ".join(DTYPES), repr(dtype))
    if repeats < 1:
        raise bad_argument("repeats", "at least 1", repeats)
    place = torch.device(device)
    rows = []
    for shape in shapes:
        torch.manual_seed(0)
        for kind, cases, unit, peer in (
            ("operator", operator_cases(shape, DTYPES[dtype], place), COPY, ATTENTION),
            ("layer", layer_cases(shape, DTYPES[dtype], place), PROJECTIONS, SOFTMAX_LAYER),
        ):
            if progress is not None:
                progress(f"{kind}s at {shape}, {dtype}")
            measured = _measure(cases, place, repeats, unit, peer)
            rows += [{"kind": kind, "shape": asdict(shape), **row} for row in measured]
    settings = {"dtype": dtype, "device": device, "repeats": repeats}
    return {"environment": environment(), "settings": settings, "rows": rows}


def _measure(
    cases: list[Case], device: torch.device, repeats: int, unit: str, peer: str
) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {case.name: {"name": case.name} for case in cases}
    for pass_name in ("forward", "forward_backward"):
        calls = {case.name: getattr(case, pass_name) for case in cases}
        seconds = median_seconds(calls, device, repeats=repeats)
        medians = {name: median(values) for name, values in seconds.items()}
        for name, call in calls.items():
            rows[name][pass_name] = {
                "seconds": seconds[name],
                "median_seconds": medians[name],
                f"times {unit}": medians[name] / medians[unit],
                f"times {peer}": medians[name] / medians[peer],
                "peak_memory_bytes": peak_memory(call, device),
            }
    return list(rows.values())


def _call(mixer: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    return lambda: mixer(x)


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype).requires_grad_()
