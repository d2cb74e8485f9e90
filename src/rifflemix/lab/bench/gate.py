"""Correctness checks and limits of time and memory: a row that fails a check is not timed."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

# Lower bound of the norm that an error is divided by, relative to the largest norm. It keeps
# gradients that are zero up to rounding from failing. The epsilon of bfloat16 is larger.
_FLOOR = 1e-3

# Largest relative error against another precision. Layers have a larger tolerance, because their
# projections round their outputs and a sort may then swap two neighbors.
OPERATOR_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2}
LAYER_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 2e-1}


@dataclass(frozen=True)
class Check:
    """Result of one correctness check.

    Attributes:
        against: name of the expected result.
        shape: shape (B, N, C) of the check.
        error: largest relative error of any output or gradient; None if it is not finite.
        tolerance: largest error that passes.
        passed: whether the check passed.
    """

    against: str
    shape: str
    error: float | None
    tolerance: float
    passed: bool

    def failure(self) -> str:
        """Return the failure message of a check that did not pass."""
        error = "not finite, or of another shape" if self.error is None else f"{self.error:.2g}"
        return f"error against {self.against} is {error}, more than {self.tolerance:g}"


def check(
    against: str,
    shape: object,
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    tolerance: float,
) -> Check:
    """Compare an output and its gradients with the expected tensors."""
    error = relative_error(actual, expected)
    finite = math.isfinite(error)
    passed = finite and error <= tolerance
    return Check(against, str(shape), error if finite else None, tolerance, passed)


def check_finite(
    against: str, shape: object, size: Sequence[int], actual: Sequence[Tensor]
) -> Check:
    """Check the output size and that all values are finite.

    Used for layers without a reference.
    """
    good = actual[0].shape == tuple(size) and all(bool(a.isfinite().all()) for a in actual)
    return Check(against, str(shape), 0.0 if good else None, 0.0, good)


def output_and_gradients(run: Callable[[], Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Compute the output and the gradients of `leaves` for `output_gradient(y)`."""
    y = run()
    grads = torch.autograd.grad(y, leaves, output_gradient(y), materialize_grads=True)
    return [y, *grads]


def output_gradient(y: Tensor) -> Tensor:
    """Return a fixed output gradient with a different value at each position.

    With a gradient of all ones, a wrong backward pass of a permutation would still pass. The values
    are exact in bfloat16, so every floating-point type gets the same gradient.
    """
    positions = torch.arange(y.numel(), device=y.device, dtype=torch.float64)
    gradient = (torch.frac(0.6180339887498949 * (positions + 1)) - 0.5).bfloat16()
    return gradient.to(y.dtype).view_as(y)


def relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest |actual - expected| / |expected| in the 2-norm.

    The result is infinite if shapes differ or if an error is NaN or infinite.
    """
    if [a.shape for a in actual] != [e.shape for e in expected]:
        return math.inf
    share = max(_FLOOR, *(torch.finfo(a.dtype).eps for a in actual))
    floor = share * max(_rms(e) for e in expected)
    errors = [
        _rms(a.double() - e.double()) / max(_rms(e), floor, 1e-300)
        for a, e in zip(actual, expected, strict=True)
    ]
    return max(errors) if all(math.isfinite(error) for error in errors) else math.inf


def _rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


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
