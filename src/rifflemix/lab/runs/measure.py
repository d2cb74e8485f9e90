"""Measurement of time and memory of calls."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rifflemix.compat import memory_changes, runs_on_gpu

# Calls of at least this time need no warm-up.
_LONG_SECONDS = 1.0

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_PACKAGE, _LAB = (str(Path(__file__).parents[n]) for n in (2, 1))

Call = Callable[[], object]


@dataclass(frozen=True)
class Probe:
    """Cost of one call: seconds, and peak bytes above the memory in use at its start."""

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
    """Time several calls in turn.

    Noise of the machine then affects all calls equally.

    Args:
        calls: name -> call.
        device: device of the calls; timings wait for GPU work.
        repeats: timings of each call.
        min_seconds: minimum duration of a timing; short calls are repeated.
        max_seconds: limit of the total time of a call. A call gets fewer timings to stay below
            it, but at least one timing.
        probes: costs of earlier calls. They replace the warm-up of long calls.
        should_stop: called before every timing; True returns the times so far.

    Returns:
        name -> seconds per call, one entry per timing. Use medians and ratios of medians.

    Example:
        >>> import torch, rifflemix as rm
        >>> csp, tssa = rm.create_mixer("csp", 64), rm.create_mixer("tssa", 64)
        >>> x = torch.randn(1, 256, 64)
        >>> calls = {"csp": lambda: csp(x), "tssa": lambda: tssa(x)}
        >>> seconds = rm.bench.median_seconds(calls, torch.device("cpu"), repeats=3)
        >>> {name: len(timings) for name, timings in seconds.items()}
        {'csp': 3, 'tssa': 3}
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
    """Return the minimum CPU time of a call over seven timings.

    Each timing lasts at least `min_seconds`. Other processes and threads are not counted.
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
    """Return the median of a list of timings.

    Args:
        values: timings, at least one.

    Returns:
        The median.

    Example:
        >>> import rifflemix as rm
        >>> rm.bench.median([0.3, 0.1, 0.2])
        0.2
    """
    return statistics.median(values)


def probe(call: Call, device: torch.device) -> Probe:
    """Run a call once and measure its time and peak memory."""
    seconds: list[float] = []
    memory = peak_memory(lambda: seconds.append(seconds_of(call, device)), device)
    return Probe(seconds[0], memory)


def peak_memory(call: Call, device: torch.device) -> int:
    """Return the peak memory that a call allocates in torch, in bytes.

    Memory that is allocated before the call is not counted.

    On a CPU the profiler's records of allocations are replayed. Interpreter and libraries are not
    counted, and earlier calls have no effect. On a GPU the statistics of the allocator are read.

    Args:
        call: function without arguments.
        device: device on which the function runs.

    Returns:
        Bytes.

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.randn(1000)
        >>> rm.bench.peak_memory(lambda: x + 1, torch.device("cpu")) >= 4000
        True
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.current_blas_handle()  # allocates a permanent workspace before the call
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
    """Return the share of a call's time that kernels use.

    The rest is Python, autograd and kernel launches.

    On a GPU, kernels are counted. On a CPU, operators of torch and of rifflemix are counted. A
    rifflemix operator is counted as a whole, including Python around its compiled kernel. The
    profiler slows down the rest a little, so the true share is slightly higher.

    Args:
        call: call to measure.
        device: device of the call.
        loops: number of repetitions, for short calls.

    Returns:
        Share from 0 to 1.
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

    libkineto reads its log level when the first profiler of a process starts. A level that the
    user set is kept.
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
    """Return whether an event is an operator, such as `aten::add`."""
    return "::" in key and not key.startswith("autograd::")


def _highest_level(record: profile) -> int:
    """Replay allocations and frees in order of time and return the peak."""
    level = highest = 0
    for change in memory_changes(record):
        level += change
        highest = max(highest, level)
    return highest


def _warm_up(call: Call, device: torch.device, min_seconds: float, known_seconds: float) -> int:
    """Warm up short calls and return the repetitions per timing."""
    once = known_seconds
    if once < _LONG_SECONDS:
        once = seconds_of(call, device)
    if once < _LONG_SECONDS:
        once = seconds_of(call, device)
    return max(1, int(min_seconds / max(once, 1e-9)))


def seconds_of(call: Call, device: torch.device, loops: int = 1) -> float:
    """Return the mean time of a call, including GPU work."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(loops):
        call()
    _wait(device)
    return (time.perf_counter() - start) / loops


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def package_calls(call: Callable[[], object]) -> Counter[str]:
    """Count how often `call` enters each rifflemix function: the Python overhead.

    The keys are files and names.

    Functions of `rifflemix.lab` and calls in other threads are not counted.
    """
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and file.startswith(_PACKAGE) and not file.startswith(_LAB):
            calls[f"{Path(file).relative_to(_PACKAGE)} {name}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return calls
