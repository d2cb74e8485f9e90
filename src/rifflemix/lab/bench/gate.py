"""Correctness before speed: a row whose gate fails is not timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A gradient that is zero but for rounding is measured against the size of its neighbours.
# The rounding of 16 bits is more than this.
_FLOOR = 1e-3

# Largest relative error of the same inputs computed in another precision, and of layers, whose
# projections round before a sort may decide between two neighbours.
OPERATOR_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2}
LAYER_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 2e-1}


@dataclass(frozen=True)
class Check:
    """One comparison of results.

    Attributes:
        against: what the results were compared with.
        shape: at which (B, N, C).
        error: largest relative error of any output or gradient; None where one is not finite.
        tolerance: largest error that passes.
        passed: whether it did.
    """

    against: str
    shape: str
    error: float | None
    tolerance: float
    passed: bool

    def failure(self) -> str:
        """A sentence for a check that did not pass."""
        error = "not finite, or of another shape" if self.error is None else f"{self.error:.2g}"
        return f"error against {self.against} is {error}, more than {self.tolerance:g}"


def check(
    against: str,
    shape: object,
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    tolerance: float,
) -> Check:
    """Compare an output and its gradients with the expected ones, tensor by tensor."""
    error = relative_error(actual, expected)
    finite = math.isfinite(error)
    passed = finite and error <= tolerance
    return Check(against, str(shape), error if finite else None, tolerance, passed)


def check_finite(
    against: str, shape: object, size: Sequence[int], actual: Sequence[Tensor]
) -> Check:
    """For what has no reference here: an output of some size, and all values finite."""
    good = actual[0].shape == tuple(size) and all(bool(a.isfinite().all()) for a in actual)
    return Check(against, str(shape), 0.0 if good else None, 0.0, good)


def output_and_gradients(run: Callable[[], Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """An output, and gradients of `leaves` for `output_gradient` of it."""
    y = run()
    grads = torch.autograd.grad(y, leaves, output_gradient(y), materialize_grads=True)
    return [y, *grads]


def output_gradient(y: Tensor) -> Tensor:
    """A fixed gradient for an output, which differs from position to position.

    A permutation's backward would pass with a gradient of all ones whatever it does. The values
    fit into every floating-point type, so that all types see the same.
    """
    positions = torch.arange(y.numel(), device=y.device, dtype=torch.float64)
    gradient = (torch.frac(0.6180339887498949 * (positions + 1)) - 0.5).bfloat16()
    return gradient.to(y.dtype).view_as(y)


def relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest |actual - expected| / |expected| in the 2-norm; infinite if shapes differ or NaN."""
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
