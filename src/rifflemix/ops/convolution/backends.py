"""Choice of the backend of a call: one of the modules reference, eager and cpu.

The function does not check its arguments, because layers have checked them.
"""

from __future__ import annotations

from torch import Tensor

from rifflemix.ops.convolution import cpu, eager, reference
from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.native import note_slow_call

_FAMILY = Family(reference, eager, cpu=cpu)


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    first: int,
    length: int,
    backend: str = "auto",
) -> Tensor:
    """Compute y[n, c] = bias[c] + sum over i of weight[i, c] x[n + first + i, c].

    Args:
        x: (B, N, C) tokens; tokens outside of them are 0.
        weight: (K, C) factors, in a floating-point dtype.
        bias: (C,), in a floating-point dtype; None for 0.
        first: position of the first token that the output at 0 reads: 1 - K for a causal
            convolution, or 0 if x starts with K - 1 earlier tokens.
        length: number of outputs.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, length, C), in the dtype of `x`.
    """
    names: tuple[str, ...] = PLAIN
    if cpu.supports(x, weight, bias):
        names = (*PLAIN, "cpu")
    else:
        note_slow_call(x)
    return _FAMILY.pick(backend, names).short_convolution(x, weight, bias, first, length)
