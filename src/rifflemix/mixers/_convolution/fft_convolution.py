"""Convolution along the tokens with kernels as long as the sequence, by fast Fourier transform.

Complex numbers occur only inside the two registered operators: torch.compile generates code for
the real arithmetic around them. Transforms use float32 or wider for every dtype of the tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_tokens
from rifflemix.compat import has_plain_autograd
from rifflemix.errors import bad_argument, check_choice
from rifflemix.ops.define import define

NO_ONNX = "its convolution is one operator of this package: ONNX transforms no complex numbers"
FIRST_LAGS = {"present": 0, "next": 1}

_NUMBERS_IN_CACHE = 2**18


def wide(x: Tensor) -> Tensor:
    """Convert `x` to float32 unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def fft_convolution(
    x: Tensor, forward: Tensor, backward: Tensor | None = None, *, backward_from: str = "next"
) -> Tensor:
    """Convolve each channel with a kernel as long as the sequence.

    y[n] = sum over m <= n of forward[n - m] x[m], plus the sum over m >= n + s of
    backward[m - n - s] x[m]. The shift s is 0 for backward_from="present" and 1 for "next". The
    cost is O(N log N) per channel. A transform mixes all positions, so a later token can change an
    earlier output by rounding errors only.

    Args:
        x: (B, N, C) tokens.
        forward: (C, N) kernel over the current and the earlier tokens.
        backward: (C, N) kernel over the later tokens.
        backward_from: first token of `backward`: "present" (the current token) or "next".

    Returns:
        (B, N, C) in the dtype of x.

    Raises:
        InputError: wrong shape or dtype, or an unknown `backward_from`.
    """
    check_tokens("x", x)
    check_choice("backward_from", backward_from, FIRST_LAGS)
    length, channels = x.shape[1:]
    for name, kernel in (("forward", forward), ("backward", backward)):
        if kernel is not None and kernel.shape != (channels, length):
            raise bad_argument(name, f"shape (C, N) = {(channels, length)}", tuple(kernel.shape))
    periodic = F.pad(forward, (0, length))
    if backward is not None:
        later = F.pad(backward.flip(-1), (length, 0))
        periodic = periodic + (later if FIRST_LAGS[backward_from] else later.roll(1, -1))
    tokens = wide(x)
    dtype = torch.promote_types(tokens.dtype, periodic.dtype)
    # torch.func and forward-mode AD support torch's operators but not this custom operator.
    convolve = circular_convolve if has_plain_autograd() else _convolve
    y: Tensor = convolve(tokens.to(dtype), periodic.to(dtype))
    return y.to(x.dtype)


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute `circular_convolve` in plain torch."""
    period = kernel.shape[1]
    spectrum = torch.fft.rfft(x.mT, n=period) * torch.fft.rfft(kernel)
    y: Tensor = torch.fft.irfft(spectrum, n=period)[..., : x.shape[1]].mT
    return y


def _check_convolution(x: Tensor, kernel: Tensor) -> None:
    if kernel.dim() == 2:
        _check_period(x, kernel.shape[1])


def _convolution_gradient(
    x: Tensor, kernel: Tensor, needs: tuple[bool, bool], grad: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    return (
        circular_convolve(grad, _negated_lags(kernel)) if needs[0] else None,
        circular_correlate(x, grad, kernel.shape[1]) if needs[1] else None,
    )


@define(
    "circular_convolve",
    shapes="x: B N C, kernel: C PERIOD",
    check=_check_convolution,
    like="x",
    saves="x kernel needs",
    backward=_convolution_gradient,
)
def circular_convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute N positions of a circular convolution of period M >= N.

    Args:
        x: (B, N, C) tokens.
        kernel: (C, M) one period of the kernel of each channel.

    Returns:
        (B, N, C), the first N positions.
    """
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    for channels in _channel_blocks(x):
        y[..., channels] = _convolve(x[..., channels], kernel[channels])
    return y


def _correlation_gradient(
    x: Tensor, y: Tensor, needs: tuple[bool, ...], grad: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    return (
        circular_convolve(y, _negated_lags(grad)) if needs[0] else None,
        circular_convolve(x, grad) if needs[1] else None,
    )


@define(
    "circular_correlate",
    shapes="x: B N C, y: B N C",
    check=lambda x, y, period: _check_period(x, period),
    like=lambda x, y, period: x.new_empty((x.shape[2], period)),
    saves="x y needs",
    backward=_correlation_gradient,
)
def circular_correlate(x: Tensor, y: Tensor, period: int) -> Tensor:
    """Sum y[n] x[n - lag] over samples and n for each lag.

    Args:
        x: (B, N, C) tokens.
        y: (B, N, C) tokens.
        period: the period M >= N.

    Returns:
        (C, M), one sum per channel and lag below M.
    """
    lags = x.new_zeros((x.shape[2], period))
    for channels in _channel_blocks(x):
        # Not a lazy conjugate: torch.compile does not resolve it inside an operator.
        conjugate = torch.fft.rfft(x[..., channels].mT, n=period).conj_physical()
        spectrum = conjugate * torch.fft.rfft(y[..., channels].mT, n=period)
        lags[channels] = torch.fft.irfft(spectrum.sum(0), n=period)
    return lags


def _check_period(x: Tensor, period: int) -> None:
    if period < x.shape[1]:
        raise bad_argument("period", f"at least the {x.shape[1]} tokens of x", period)


def _negated_lags(kernel: Tensor) -> Tensor:
    return kernel.flip(1).roll(1, 1)


def _channel_blocks(x: Tensor) -> list[slice]:
    """Split the channels of (B, N, C) into cache-sized blocks on a CPU."""
    batch, length, channels = x.shape
    if not x.numel():  # torch cannot transform empty tensors
        return []
    size = channels
    if x.device.type == "cpu":
        size = min(channels, max(1, _NUMBERS_IN_CACHE // max(1, batch * length)))
    return [slice(first, first + size) for first in range(0, channels, size)]
