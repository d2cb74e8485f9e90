"""Parts of state spaces: complex numbers as real tensors, scans, directions and initial steps."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

from rifflemix.checks import check_bool
from rifflemix.errors import bad_argument


class ComplexPair(NamedTuple):
    """Real and imaginary parts: two tensors of the same shape."""

    real: Tensor
    imag: Tensor

    @classmethod
    def from_last(cls, x: Tensor) -> ComplexPair:
        """Split a tensor (..., 2) into its real and imaginary parts."""
        return cls(x[..., 0], x[..., 1])

    def stacked(self) -> Tensor:
        """Stack both parts to (..., 2): the inverse of `from_last`."""
        return torch.stack(self, -1)

    def plus(self, other: Self) -> ComplexPair:
        """Add elementwise."""
        return ComplexPair(self.real + other.real, self.imag + other.imag)

    def times(self, other: Self) -> ComplexPair:
        """Multiply elementwise."""
        return ComplexPair(
            self.real * other.real - self.imag * other.imag,
            self.real * other.imag + self.imag * other.real,
        )

    def scaled(self, factor: Tensor | float) -> ComplexPair:
        """Multiply by real numbers."""
        return ComplexPair(self.real * factor, self.imag * factor)

    def over(self, other: Self) -> ComplexPair:
        """Divide elementwise."""
        square = other.real.square() + other.imag.square()
        return self.times(type(other)(other.real / square, -other.imag / square))

    def exp(self) -> ComplexPair:
        """Compute the exponential."""
        size = self.real.exp()
        return ComplexPair(size * self.imag.cos(), size * self.imag.sin())

    def expm1(self) -> ComplexPair:
        """Compute the exponential minus 1 without losing digits near 0."""
        growth = self.real.expm1()
        real = growth * self.imag.cos() - 2.0 * (0.5 * self.imag).sin().square()
        return ComplexPair(real, (growth + 1.0) * self.imag.sin())


def linear_scan(ratio: ComplexPair, inputs: ComplexPair) -> ComplexPair:
    """Compute h[n] = ratio h[n - 1] + inputs[n], with h[-1] = 0.

    The scan joins neighbors in pairs, solves the recurrence over pairs (half as long) and fills in
    the positions between them: O(N) work in O(log N) steps.

    Args:
        ratio: (P,) coefficients.
        inputs: (B, N, P) inputs.

    Returns:
        (B, N, P) states.

    Source: Blelloch 1990, "Prefix Sums and Their Applications", section 1.4.
    """
    length = inputs.real.shape[1]
    if length == 1:
        return inputs
    even = _positions(inputs, slice(0, None, 2))
    odd = _positions(inputs, slice(1, None, 2))
    pairs = ratio.times(_positions(even, slice(0, length // 2))).plus(odd)
    at_odd = linear_scan(ratio.times(ratio), pairs)
    before = _positions(at_odd, slice(0, (length - 1) // 2))
    later = ratio.times(before).plus(_positions(even, slice(1, None)))
    return ComplexPair(
        _interleave(torch.cat((even.real[:, :1], later.real), 1), at_odd.real),
        _interleave(torch.cat((even.imag[:, :1], later.imag), 1), at_odd.imag),
    )


def _positions(x: ComplexPair, index: slice) -> ComplexPair:
    return ComplexPair(x.real[:, index], x.imag[:, index])


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """Merge tokens 0, 2, ... and 1, 3, ...; `even` has the length of `odd`, or one more."""
    count = odd.shape[1]
    pairs = torch.stack((even[:, :count], odd), 2).flatten(1, 2)
    return torch.cat((pairs, even[:, count:]), 1)


_SHORTEST_STEP, _LONGEST_STEP = 1e-3, 1e-1


def both_directions(bidirectional: bool | None, causal: bool) -> bool:
    """Return `bidirectional`, or `not causal` if it is None.

    Raises:
        InputError: `bidirectional` and `causal` are both True.
    """
    if bidirectional is None:
        return not causal
    if check_bool("bidirectional", bidirectional) and causal:
        raise bad_argument("bidirectional", "False with causal=True", True)
    return bidirectional


def random_log_steps(*shape: int) -> Tensor:
    """Draw logarithms of steps, uniform from log(0.001) to log(0.1), as in released code."""
    return torch.empty(shape).uniform_(math.log(_SHORTEST_STEP), math.log(_LONGEST_STEP))
