"""Linear recurrence with constant diagonal coefficients, as a scan of logarithmic depth."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.mixers._convolution.complex_pair import ComplexPair


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
