"""Time and memory of a call, measured the same way everywhere."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rifflemix.compat import memory_changes, runs_on_gpu

# A call that lasts so long needs no warming up, and is not worth making once more to find out.
_LONG_SECONDS = 1.0

_LOG_LEVEL = "KINETO_LOG_LEVEL"

Call = Callable[[], object]


@dataclass(frozen=True)
class Probe:
    """The cost of one call: seconds, and bytes above the level at its start."""

    seconds: float
    peak_memory_bytes: int


def median_seconds(
    calls: Mapping[str, Call],
    device: torch.device,
    *,
    repeats: int = 7,
    min_seconds: float = 0.02,
    max_seconds: float | None = None,
    probes: Mapping[str, Probe] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, list[float]]:
    """Times of several calls, taken in turn so that a noisy machine disturbs all alike.

    Args:
        calls: name -> call.
        device: where the calls compute; GPU work is waited for.
        repeats: timings of each call.
        min_seconds: a timing repeats a short call until it has lasted this long.
        max_seconds: a call gets fewer timings, but at least one, rather than take longer in all.
        probes: what a call took when it was made before; its warm-up, if it was a long one.
        should_stop: polled before every timing; when True the times so far are returned.

    Returns:
        name -> seconds a call, one entry per timing; take the median, and ratios of medians.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    loops: dict[str, int] = {}
    spent = {name: probe.seconds for name, probe in (probes or {}).items()}
    for _ in range(repeats):
        for name, call in calls.items():
            if should_stop is not None and should_stop():
                return seconds
            if name not in loops:
                loops[name] = _warm_up(call, device, min_seconds, spent.get(name, 0.0))
            taken = seconds[name]
            next_one = loops[name] * taken[-1] if taken else 0.0
            if max_seconds is not None and taken and spent[name] + next_one > max_seconds:
                continue
            taken.append(seconds_of(call, device, loops[name]))
            spent[name] = spent.get(name, 0.0) + loops[name] * taken[-1]
    return seconds


def processor_seconds(call: Call, *, min_seconds: float = 0.02) -> float:
    """The least processor time of this thread that a call takes, of seven timings this long.

    What else runs on the machine does not count, nor do other threads.
    """
    call()
    found = []
    for _ in range(7):
        start, calls = time.thread_time(), 0
        while calls == 0 or time.thread_time() - start < min_seconds:
            call()
            calls += 1
        found.append((time.thread_time() - start) / calls)
    return min(found)


def median(values: list[float]) -> float:
    """Median of a list of timings."""
    return statistics.median(values)


def probe(call: Call, device: torch.device) -> Probe:
    """Make a call once and say what it took."""
    seconds: list[float] = []
    memory = peak_memory(lambda: seconds.append(seconds_of(call, device)), device)
    return Probe(seconds[0], memory)


def peak_memory(call: Call, device: torch.device) -> int:
    """Most bytes that torch's allocator held above the level at the start, in one call.

    On a CPU the allocator's own record is replayed (interpreter and libraries not counted, and
    nothing depends on what ran before); on a GPU the driver's statistics are read.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.current_blas_handle()  # its workspace stays, and is no call's own
        torch.cuda.synchronize(device)
        start = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - start
    with _quiet_profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    return _highest_level(record)


def kernel_share(call: Call, device: torch.device, loops: int = 1) -> float:
    """Share of a call's time that is spent computing; the rest is Python, autograd and launching.

    On a GPU its kernels count, on a CPU torch's operators and those of this package, which are
    Python around a compiled kernel and count whole. The profiler slows the rest down a little, so
    that the true share is somewhat higher.

    Args:
        call: what is made.
        device: where it computes.
        loops: how often it is made, for a short one.

    Returns:
        0..1.
    """
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with _quiet_profile(activities=activities) as record:
        seconds = loops * seconds_of(call, device, loops)
    events = record.key_averages()
    if on_gpu:
        busy = sum(e.self_device_time_total for e in events if runs_on_gpu(e))
    else:
        busy = sum(e.self_cpu_time_total for e in events if _is_operator(e.key))
    return min(1e-6 * float(busy) / seconds, 1.0)


@contextmanager
def _quiet_profile(**options: Any) -> Iterator[profile]:
    """Profile without the lines that libkineto writes to stderr.

    libkineto reads its level when the first profiler of a process starts. A level of the user wins.
    """
    is_set = _LOG_LEVEL in os.environ
    os.environ.setdefault(_LOG_LEVEL, "6")  # above every level of libkineto
    try:
        with profile(**options) as record:
            yield record
    finally:
        if not is_set:
            del os.environ[_LOG_LEVEL]


def _is_operator(key: str) -> bool:
    """Whether an event is one of torch's or of a library's operators: `aten::add`."""
    return "::" in key and not key.startswith("autograd::")


def _highest_level(record: profile) -> int:
    """Replay allocations and frees in order of time."""
    level = highest = 0
    for change in memory_changes(record):
        level += change
        highest = max(highest, level)
    return highest


def _warm_up(call: Call, device: torch.device, min_seconds: float, known_seconds: float) -> int:
    """Calls for one timing; a call known to be long is neither warmed up nor looped."""
    once = known_seconds
    if once < _LONG_SECONDS:
        once = seconds_of(call, device)
    if once < _LONG_SECONDS:
        once = seconds_of(call, device)
    return max(1, int(min_seconds / max(once, 1e-9)))


def seconds_of(call: Call, device: torch.device, loops: int = 1) -> float:
    """Time of a call, made `loops` times; GPU work is waited for."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(loops):
        call()
    _wait(device)
    return (time.perf_counter() - start) / loops


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
