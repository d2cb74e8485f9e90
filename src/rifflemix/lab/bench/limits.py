"""Limits on the time and the memory of a call with unknown cost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

try:
    import resource
except ImportError:  # Windows has no process limits
    resource = None  # type: ignore[assignment]

_SHARE_OF_MEMORY = 0.8


class OutOfTimeError(Exception):
    """A call took longer than `time_limit` allows."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the block after `seconds`, when the current operator returns.

    This works only in the main thread and on systems with `signal.setitimer`. Otherwise the block
    runs to its end.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not (on_main_thread and hasattr(signal, "setitimer")):
        yield
        return

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # also if the timer fires just before it is disarmed
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_limit() -> Iterator[None]:
    """Limit the growth of the process to most free memory (Linux).

    Larger allocations raise an error. Without this limit, Linux grants memory that it does not have
    and later kills the process. On other systems, and for GPU memory, this function does nothing.
    """
    free = _kibibytes("/proc/meminfo", "MemAvailable")
    used = _kibibytes("/proc/self/status", "VmData")
    if resource is None or free is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = int(1024 * (used + _SHARE_OF_MEMORY * free))
    known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(most, *known), hard) if known else (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _kibibytes(file: str, name: str) -> int | None:
    """Read a value from a file of /proc, or return None."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return next((int(text) for text in found), None)
