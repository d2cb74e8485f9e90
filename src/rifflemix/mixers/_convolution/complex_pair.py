"""Complex numbers as two real tensors: torch.compile generates no code for complex types."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


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
