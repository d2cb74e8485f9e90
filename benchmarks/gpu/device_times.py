"""How long the GPU itself takes for the Triton kernels, beside a copy, torch.sort and attention.

Calls of kernels are captured into a graph and replayed, so that what Python and launching cost is
left out; `rifflemix bench ops` has that in. "bandwidth" is that of the tokens that are read and
written, as a share of what a copy of the same tensor reaches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rifflemix import ops
from rifflemix.files import write_json
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.measure import median

FORMAT = "rifflemix.device-times/1"
_CALLS, _REPEATS = 10, 15
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

# Name, call, and how often it reads or writes all tokens; None where that is not what counts, of
# torch's own, which last long enough without a graph.
Case = tuple[str, Callable[[], object], float | None]


def cases(x: Tensor, heads: int) -> Iterator[Case]:
    """What is timed, for tokens (B, N, C)."""
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
    # The order is kept for the backward: half a byte a token, a byte, or two.
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


def seconds_of(call: Callable[[], object], captured: bool) -> list[float]:
    """Times of one call, each the mean of several."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()

    def several() -> None:
        for _ in range(_CALLS):
            call()

    run = several
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            several()
        run = graph.replay
    run()
    found = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1000 / _CALLS)
    return found


def measure(shape: tuple[int, int, int], heads: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """A row for each case."""
    x = torch.randn(shape, device="cuda").to(dtype)
    rows: list[dict[str, Any]] = []
    for name, call, passes in cases(x, heads):
        row: dict[str, Any] = {"name": name, "shape": list(shape), "dtype": str(dtype)[6:]}
        try:
            row["seconds"] = seconds_of(call, captured=passes is not None)
        except Exception as error:  # what cannot be captured, or a kernel that is refused
            row["error"] = str(error).splitlines()[0][:200]
        else:
            row["median"] = median(row["seconds"])
            copy = rows[0]["median"] if rows else row["median"]
            row["x_copy"] = row["median"] / copy
            row["bandwidth"] = None if passes is None else passes / 2 / row["x_copy"]
        rows.append(row)
        print(*(row.get(key, "") for key in ("name", "dtype", "median", "x_copy", "bandwidth")))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--dtypes", nargs="+", choices=_DTYPES, default=list(_DTYPES))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a GPU that torch can use, found none: run it where one is")
    rows: list[dict[str, Any]] = []
    for dtype in arguments.dtypes:
        for tokens in arguments.tokens:
            rows += measure((8, tokens, 512), 8, _DTYPES[dtype])
            result = {"format": FORMAT, "environment": environment(), "heads": 8, "rows": rows}
            write_json(arguments.out, result)


if __name__ == "__main__":
    main()
