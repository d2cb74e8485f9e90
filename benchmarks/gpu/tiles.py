"""Times the Triton kernels with other tiles and numbers of warps.

The table says for this device which are the fastest, beside those that the library takes. It is
for a person to read: nothing is changed.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from device_times import seconds_of

from rifflemix import ops
from rifflemix.files import write_json
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.measure import median, median_seconds
from rifflemix.ops.permutation import triton as permutation
from rifflemix.ops.permutation import triton_windows as windows
from rifflemix.ops.sinkhorn import triton as balancing
from rifflemix.ops.sinkhorn import triton_attention as attention
from rifflemix.ops.statistics import triton_causal
from rifflemix.ops.statistics import triton_common as statistics

FORMAT = "rifflemix.tiles/2"
_ROWS = [
    {"ROWS": rows, "CHANNELS": channels, "num_warps": warps}
    for rows, channels, warps in itertools.product((4, 8, 16, 32), (64, 128, 256), (2, 4, 8))
    if 256 <= rows * channels // warps <= 2048
]
_SHIFTS = [
    {"tokens": tokens, "CHANNELS": channels, "num_warps": warps}
    for tokens, channels, warps in itertools.product((64, 256, 1024), (16, 32, 64), (1, 4, 8, 16))
    if 256 <= tokens * channels // warps <= 2048
]
# Slots of a window that a lane holds, of a channel or two, and registers of a thread.
_WINDOWS = [
    {"own": own, "maxnreg": registers}
    for own, registers in itertools.product((16, 32, 64), (64, 96, 128, 168, 255))
    if 3 * own <= registers <= 8 * own
]
_TURNED = [{"_MOST_ACROSS": tokens} for tokens in (1, 16384)]
_UNSORTED = [{"_MAX_UNSORTED": tokens} for tokens in (2, 16384)]
_TOKENS = [
    {"_TILE": tile, "_CHUNK": chunk, "_OF_WARP": of_warp}
    for tile, chunk, of_warp in itertools.product((1024, 2048, 4096), (32, 64), (1024, 2048))
]
_CAUSAL = [{"_ROWS": 16}, {"_ROWS": 32}]
_BALANCING = [{"_LEAST_NUMBERS": numbers} for numbers in (4, 8, 16, 32)]
_BLOCKS = [
    {"KEYS": keys, "num_warps": warps}
    for keys, warps in itertools.product((16, 32, 64), (1, 2, 4, 8))
]
_SORTED = [
    {"_PARTS": parts, "_ROW": row} for parts, row in itertools.product((4, 8, 16, 32), (128, 256))
]


@contextmanager
def rows_tile(choice: dict[str, Any]) -> Iterator[None]:
    """Pairs with another tile."""
    with mock.patch.dict(permutation._ROW_TILE, choice):
        yield


@contextmanager
def shift_tile(choice: dict[str, Any]) -> Iterator[None]:
    """Shifts, with pairs or without, with another tile."""

    def changed(_: torch.Tensor, row_size: int = 1) -> dict[str, int]:
        tile = {key: value for key, value in choice.items() if key != "tokens"}
        return {**tile, "ROWS": choice["tokens"] // row_size}

    with mock.patch.object(permutation, "shift_tile", changed):
        yield


@contextmanager
def window_tile(choice: dict[str, Any]) -> Iterator[None]:
    """Windows of which a lane holds more or fewer slots."""
    usual = windows.window_tile_of

    def changed(group_size: int, half: int, channels: int, turned: int = 0) -> dict[str, int]:
        slots, side = max(2, triton.next_power_of_2(group_size)), 1 if turned else 2
        tile = windows.window_tile(slots, choice["own"], side, channels)
        return {**usual(group_size, half, channels, turned), **tile, "maxnreg": choice["maxnreg"]}

    with mock.patch.object(windows, "window_tile_of", changed):
        yield


@contextmanager
def block_tile(choice: dict[str, Any]) -> Iterator[None]:
    """Sinkhorn attention with other keys at a time."""
    usual = attention._block_tile

    def changed(q: torch.Tensor, block_size: int) -> dict[str, int]:
        return {**usual(q, block_size), **choice}

    with mock.patch.object(attention, "_block_tile", changed):
        yield


def constants_of(*modules: Any) -> Callable[[dict[str, Any]], Any]:
    """Other constants in modules."""

    @contextmanager
    def setting(choice: dict[str, Any]) -> Iterator[None]:
        with ExitStack() as stack:
            for module in modules:
                there = {name: value for name, value in choice.items() if hasattr(module, name)}
                stack.enter_context(mock.patch.multiple(module, **there))
            yield

    return setting


def kernels(
    device: str, batch: int, tokens: int, channels: int
) -> dict[str, tuple[Any, list[Any], Any]]:
    """Name -> what sets a choice, the choices, and the call that is timed."""
    x = torch.randn(batch, tokens, channels, device=device, dtype=torch.bfloat16)
    w = x.unflatten(2, (-1, 8)).permute(0, 3, 1, 2).contiguous()
    temperature = torch.ones(w.shape[1], device=device)
    steps = ops.shift_steps("linear", tokens, channels, device=device)
    block = 64 if tokens > 1024 else 32
    scores = torch.randn(batch, w.shape[1], tokens // block, tokens // block, device=device)
    sorting = scores.softmax(-1).to(w.dtype)

    def sort(groups: int) -> Callable[[], object]:
        return lambda: ops.group_sort(x, groups, order="ascending", backend="triton")

    def trained(function: Callable[[Any], Any], leaf: Any) -> Callable[[], object]:
        leaf = leaf.detach().requires_grad_()

        def call() -> object:
            y = function(leaf)
            y = y if isinstance(y, torch.Tensor) else y[0]
            return torch.autograd.grad(y, leaf, grad.view(y.shape))[0]

        grad = torch.randn_like(x)
        return call

    def sort_whole(leaf: Any) -> Any:
        return ops.group_sort(leaf, 1, order="ascending", backend="triton")

    def causal(leaf: Any) -> Any:
        return ops.causal_token_statistics(leaf, temperature, backend="triton")

    def attend(leaf: Any) -> Any:
        return ops.sinkhorn_attention(leaf, leaf, leaf, sorting, block, backend="triton")

    return {
        "sort_pairs": (rows_tile, _ROWS, sort(tokens // 2)),
        "sort_pairs, shifted": (
            shift_tile,
            _SHIFTS,
            lambda: ops.channel_permute(x, steps, tokens // 2, backend="triton"),
        ),
        "sort_windows, 64": (window_tile, _WINDOWS, sort(tokens // 64)),
        "sort_windows, 256": (window_tile, _WINDOWS, sort(tokens // 256)),
        "sort_windows, all": (window_tile, _WINDOWS, sort(1)),
        "sort_windows, 512, turned": (constants_of(windows), _TURNED, sort(tokens // 512)),
        "sort_windows, all, turned": (constants_of(windows), _TURNED, sort(1)),
        "sort_windows, all, trained": (
            constants_of(permutation),
            _UNSORTED,
            trained(sort_whole, x),
        ),
        "sort_windows, all, trained, turned": (
            constants_of(windows),
            _TURNED,
            trained(sort_whole, x),
        ),
        "token_statistics": (
            constants_of(statistics),
            _TOKENS,
            lambda: ops.token_statistics(w, temperature, backend="triton"),
        ),
        "causal_token_statistics, trained": (
            constants_of(triton_causal),
            _CAUSAL,
            trained(causal, w),
        ),
        "balance": (
            constants_of(balancing),
            _BALANCING,
            lambda: ops.sinkhorn(scores, 8, backend="triton"),
        ),
        "sinkhorn_attention": (block_tile, _BLOCKS, lambda: attend(w)),
        "sinkhorn_attention, trained": (block_tile, _BLOCKS, trained(attend, w)),
        "sinkhorn_attention, trained, sorted": (
            constants_of(attention),
            _SORTED,
            trained(attend, w),
        ),
    }


def timed(call: Callable[[], object], device: str) -> float:
    """Seconds of a call: in a graph, without what Python and launching take."""
    if device == "cpu":
        return median(median_seconds({"": call}, torch.device(device), repeats=1)[""])
    return median(seconds_of(call, captured=True))


def choice_row(setting: Any, choice: Any, call: Any, device: str, right: Any) -> dict[str, Any]:
    """A choice, its time, and what went wrong with it."""
    with setting(choice):
        try:
            if not torch.equal(call(), right):
                close = torch.allclose(call().float(), right.float(), rtol=0.02, atol=1e-3)
                if not close:
                    return {"choice": choice, "status": "wrong result"}
            return {"choice": choice, "status": "measured", "seconds": timed(call, device)}
        except Exception as error:  # a tile that the compiler or the device refuses
            return {"choice": choice, "status": f"failed: {str(error).splitlines()[0][:200]}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cpu: one tiny choice, interpreted")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tiny = arguments.device == "cpu"
    table: dict[str, Any] = {}
    sizes = (1, 64, 16) if tiny else (8, 4096, 512)
    found = kernels(arguments.device, *sizes)
    for name in list(found)[: 1 if tiny else None]:
        setting, choices, call = found[name]
        right, usual = call(), timed(call, arguments.device)
        rows = [
            choice_row(setting, choice, call, arguments.device, right)
            for choice in (choices[:1] if tiny else choices)
        ]
        measured = [row for row in rows if row["status"] == "measured"]
        best = min(measured, key=lambda row: row["seconds"], default=None)
        table[name] = {"library_seconds": usual, "best": best, "choices": rows}
        print(name, f"{usual:.3g} s, best {best}", flush=True)
    device = "cpu" if tiny else torch.cuda.get_device_name()
    result = {
        "format": FORMAT,
        "device": device,
        "shape": dict(zip(("batch", "tokens", "channels"), sizes, strict=True)),
        "dtype": "bfloat16",
        "environment": environment(),
        "kernels": table,
    }
    write_json(arguments.out, result)


if __name__ == "__main__":
    main()
