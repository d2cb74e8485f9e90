"""Measure the Triton kernels on the GPU, next to a copy, torch.sort and attention.

Calls are captured into a graph and replayed, without the time of Python and launching. `rifflemix
bench ops` includes that time. "bandwidth" counts the tokens that a kernel reads and writes, as a
share of the bandwidth of a copy.

    python benchmarks/device_times.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from harness import Rows, graph_times, run
from torch import Tensor

from rifflemix import ops

# Name, call, and the number of reads and writes of all tokens. The number is None if the bandwidth
# does not matter; such calls are long enough without a graph.
Case = tuple[str, Callable[[], object], float | None]


def cases(x: Tensor, heads: int) -> Iterator[Case]:
    """Yield the calls on tokens (B, N, C)."""
    length, channels = x.shape[1:]
    out, grad = torch.empty_like(x), torch.randn_like(x)
    yield "copy", lambda: out.copy_(x), 2.0
    w = x.unflatten(2, (heads, -1)).transpose(1, 2)
    attention = torch.nn.functional.scaled_dot_product_attention
    yield "scaled_dot_product_attention", lambda: attention(w, w, w), None
    yield "torch.sort", lambda: x.sort(dim=1), None
    steps = ops.shift_steps("linear", length, channels, device=x.device)
    yield "circular_shift, linear", lambda: ops.circular_shift(x, steps, backend="triton"), 2.0
    shifted = partial(ops.channel_permute, x, steps, length // 2, backend="triton")
    yield "channel_permute, pairs, linear, forward", shifted, 2.0
    # The forward pass stores the order for the backward pass: 0.5 to 2 bytes per token.
    for name, groups, code in (
        ("pairs", length // 2, 0.5),
        ("windows of 64", length // 64, 1.0),
        ("windows of 1,024", length // 1024, 2.0),
        ("all", 1, 2.0),
    ):
        sort = partial(ops.group_sort, num_groups=groups, order="ascending")
        both = 4.0 + 2 * code / x.element_size()
        yield from _directions(
            f"group_sort, {name}", partial(sort, backend="triton"), x, grad, 2.0, both
        )
        if length // groups > 256:
            eager = partial(sort, backend="eager")
            yield from _directions(f"group_sort, {name}, eager", eager, x, grad, None, None)
    temperature = torch.ones(heads, device=x.device)
    grad = grad.unflatten(2, (heads, -1)).transpose(1, 2)
    for function, forward, both in (
        (ops.token_statistics, 4.0, 10.0),
        (ops.causal_token_statistics, 5.0, 13.0),
    ):
        statistics = partial(function, temperature=temperature, backend="triton")
        yield from _directions(function.__name__, statistics, w, grad, forward, both)


def _directions(
    name: str,
    function: Callable[[Tensor], Any],
    x: Tensor,
    grad: Tensor,
    once: float | None,
    both: float | None,
) -> Iterator[Case]:
    def trained() -> object:
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        return torch.autograd.grad(y if isinstance(y, Tensor) else y[0], leaf, grad)

    yield f"{name}, forward", lambda: function(x), once
    yield f"{name}, forward and backward", trained, both


def rows_of(shape: tuple[int, int, int], heads: int, dtype: str) -> Rows:
    """Measure every case on one shape and type."""
    x = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    rows: Rows = []
    for name, call, passes in cases(x, heads):
        row = {"name": name, "shape": list(shape), "dtype": dtype}
        row |= graph_times(call, captured=passes is not None)
        if "median" in row:
            copy = rows[0]["median"] if rows else row["median"]
            row["x_copy"] = row["median"] / copy
            row["bandwidth"] = None if passes is None else passes / 2 / row["x_copy"]
        rows.append(row)
        print(row, flush=True)
    return rows


def measure(
    tokens: tuple[int, ...] = (4096, 16384), dtypes: tuple[str, ...] = ("bfloat16", "float32")
) -> Iterator[dict[str, Any]]:
    """Measure all types and lengths; yield after each."""
    rows: Rows = []
    for dtype in dtypes:
        for length in tokens:
            rows += rows_of((8, length, 512), 8, dtype)
            yield {"heads": 8, "rows": rows}


if __name__ == "__main__":
    run("device-times", __doc__, measure, needs_gpu=True)
