"""Time and memory of a call, measured the same way everywhere."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile


def median_seconds(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    repeats: int = 7,
    min_seconds: float = 0.02,
) -> dict[str, list[float]]:
    """Times of several calls, taken in turn so that a noisy machine disturbs all alike.

    Args:
        calls: name -> call.
        device: where the calls compute; GPU work is waited for.
        repeats: timings of each call.
        min_seconds: a timing repeats a short call until it has lasted this long.

    Returns:
        name -> seconds a call, one entry per repeat; take the median, and ratios of medians.
    """
    loops = {name: _calibrate(call, device, min_seconds) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(_timed(call, device, loops[name]))
    return seconds


def median(values: list[float]) -> float:
    """Median of a list of timings."""
    return statistics.median(values)


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes that torch's allocator held above the level at the start, in one call.

    On a CPU the allocator's own record is replayed (interpreter and libraries not counted, and
    nothing depends on what ran before); on a GPU the driver's statistics are read.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        start = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - start
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    return _highest_level(record)


def _highest_level(record: profile) -> int:
    """Replay allocations and frees in order of time."""
    results = record.profiler.kineto_results  # type: ignore[union-attr]
    changes = [
        (event.start_ns(), event.nbytes())
        for event in results.events()
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU
    ]
    level = highest = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        level += change
        highest = max(highest, level)
    return highest


def _calibrate(call: Callable[[], object], device: torch.device, min_seconds: float) -> int:
    """Warm up, then how many calls one timing needs."""
    _timed(call, device, 1)
    once = _timed(call, device, 1)
    return max(1, int(min_seconds / max(once, 1e-9)))


def _timed(call: Callable[[], object], device: torch.device, loops: int) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(loops):
        call()
    _wait(device)
    return (time.perf_counter() - start) / loops


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
