"""Times the kernels of sorting and token statistics with other tiles and numbers of warps.

The table says for this device which are the fastest, beside those that the library takes. It is
for a person to read: nothing is changed.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from rifflemix import ops
from rifflemix.files import write_json
from rifflemix.ops.permutation import triton as permutation
from rifflemix.ops.statistics import triton_common as statistics
from rifflemix.runs.environment import environment
from rifflemix.runs.measure import median, median_seconds

FORMAT = "rifflemix.tiles/1"
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
# Registers a thread holds for values, for the window sort; warps relative to the library's.
_WINDOWS = [
    {"warps": warps, "maxnreg": registers}
    for warps, registers in itertools.product((1, 2, 4), (64, 128, 255))
]
_TOKENS = [
    {"_TILE": tile, "_CHUNK": chunk}
    for tile, chunk in itertools.product((2048, 4096, 8192), (32, 64, 128))
]


@contextmanager
def rows_tile(choice: dict[str, Any]) -> Iterator[None]:
    """Pairs and shifts with another tile."""
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
    """Windows with other warps; a thread then holds fewer or more values."""
    usual = permutation.window_tile

    def changed(slots: int, half: int, channels: int) -> dict[str, int]:
        tile = usual(slots, half, channels)
        warps = min(32, tile["num_warps"] * choice["warps"])
        shares = tile["WARPS"] * choice["warps"]
        return {**tile, "num_warps": warps, "WARPS": shares, "maxnreg": choice["maxnreg"]}

    with mock.patch.object(permutation, "window_tile", changed):
        yield


@contextmanager
def statistics_tile(choice: dict[str, Any]) -> Iterator[None]:
    """Token statistics with another tile and chunk."""
    with mock.patch.multiple(statistics, **choice):
        yield


def kernels(
    device: str, batch: int, tokens: int, channels: int
) -> dict[str, tuple[Any, list[Any], Any]]:
    """Name -> what sets a choice, the choices, and the call that is timed."""
    x = torch.randn(batch, tokens, channels, device=device, dtype=torch.bfloat16)
    w = x.unflatten(2, (-1, 8)).permute(0, 3, 1, 2).contiguous()
    temperature = torch.ones(w.shape[1], device=device)
    steps = ops.shift_steps("linear", tokens, channels, device=device)

    def sort(groups: int) -> Callable[[], object]:
        return lambda: ops.group_sort(x, groups, order="ascending", backend="triton")

    return {
        "sort_pairs": (rows_tile, _ROWS, sort(tokens // 2)),
        "sort_pairs, shifted": (
            shift_tile,
            _SHIFTS,
            lambda: ops.channel_permute(x, steps, tokens // 2, backend="triton"),
        ),
        "sort_windows, 64": (window_tile, _WINDOWS, sort(tokens // 64)),
        "sort_windows, all": (window_tile, _WINDOWS, sort(1)),
        "token_statistics": (
            statistics_tile,
            _TOKENS,
            lambda: ops.token_statistics(w, temperature, backend="triton"),
        ),
    }


def timed(call: Callable[[], object], device: str) -> float:
    repeats, least = (1, 0.0) if device == "cpu" else (5, 0.02)
    where = torch.device(device)
    return median(median_seconds({"": call}, where, repeats=repeats, min_seconds=least)[""])


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
