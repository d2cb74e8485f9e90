"""Convolution along the tokens with kernels as long as the sequence, and a network of kernels.

Complex numbers occur only inside the two registered operators: torch.compile generates code for
the real arithmetic around them. Transforms use float32 or wider for every dtype of the tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive, check_tokens
from rifflemix.compat import has_plain_autograd
from rifflemix.errors import bad_argument, check_choice
from rifflemix.nn.layers import WeightReadLinear, weight_is_plain
from rifflemix.ops.define import define
from rifflemix.ops.precision import as_default, wide, wide_default, without_autocast

NO_ONNX = "its convolution is one operator of this package: ONNX transforms no complex numbers"
FIRST_LAGS = {"present": 0, "next": 1}

_NUMBERS_IN_CACHE = 2**18


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
    return torch.fft.irfft(spectrum, n=period)[..., : x.shape[1]].mT


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


_GAMMA_SHAPE = 6.0


class GaborFilter(nn.Module):
    """exp(-(gamma (t - mu))^2 / 2) sin(omega t + phi) for each of several features.

    Args:
        features: number of filters.
        frequency: scale of the initial omega: uniform within 2 pi frequency gamma of 0.
        shape: shape of the Gamma distribution of the initial gamma.
        reach: None for positions from -1 to 1: mu starts anywhere in this range, phi at 0. A
            number for positions from 0 (the present) to 1: mu starts between 0 and `reach`. The
            released code counts these positions from 1 down to -1. To match it, the initial gamma
            is twice as large and the initial phi depends on omega.
    """

    def __init__(
        self, features: int, frequency: float, shape: float, reach: float | None = None
    ) -> None:
        super().__init__()
        # No validation, because tensors on the meta device have no values.
        shapes = torch.tensor(shape, dtype=wide_default())
        drawn = torch.distributions.Gamma(shapes, 1.0, validate_args=False).sample((features,))
        gamma = as_default(drawn if reach is None else 2.0 * drawn)
        self.gamma = nn.Parameter(gamma)
        centres = (-1.0, 1.0) if reach is None else (0.0, reach)
        self.mu = nn.Parameter(torch.empty(features).uniform_(*centres))
        turns = torch.empty(features).uniform_(-1.0, 1.0)
        omega = 2.0 * math.pi * frequency * gamma * turns
        self.omega = nn.Parameter(omega)
        # sin(w p) at p = 1 - 2 t is sin(omega t - omega / 2) for omega = -2 w.
        phi = torch.zeros(features) if reach is None else (-0.5 * omega).remainder(2.0 * math.pi)
        self.phi = nn.Parameter(phi)

    def forward(self, t: Tensor) -> Tensor:
        """Evaluate the filters: (L, 1) positions -> (L, features)."""
        window = torch.exp(-0.5 * (wide(self.gamma) * (t - wide(self.mu))).square())
        return window * torch.sin(wide(self.omega) * t + wide(self.phi))


class KernelNetwork(nn.Module):
    """Multiplicative anisotropic Gabor network: h = filter_0(t), h = filter_i(t) (W_i h + b_i).

    Args:
        channels: number C of kernels.
        features: width of the hidden layers.
        num_layers: number of products with a filter.
        frequency: see `GaborFilter`.
        num_taps: number of positions at which the kernels are sampled. The initial output weights
            are scaled by 1 / sqrt(num_taps).
        reach: see `GaborFilter`.

    Raises:
        InputError: a size out of range.

    Source: Romero et al. 2022, "FlexConv: Continuous Kernel Convolutions with Differentiable
    Kernel Sizes", section 3.2.
    """

    keeps_start = True  # host models must not reinitialize its linear layers

    def __init__(
        self,
        channels: int,
        *,
        features: int,
        num_layers: int,
        frequency: float,
        num_taps: int,
        reach: float | None = None,
    ) -> None:
        super().__init__()
        channels = check_integer("channels", channels, 1)
        features = check_integer("features", features, 1)
        num_layers = check_integer("num_layers", num_layers, 1)
        frequency = check_positive("frequency", frequency)
        num_taps = check_integer("num_taps", num_taps, 1)
        self.filters = nn.ModuleList(
            GaborFilter(features, frequency, _GAMMA_SHAPE / (layer + 1), reach)
            for layer in range(num_layers + 1)
        )
        linears = [WeightReadLinear(features, features) for _ in range(num_layers)]
        for linear in linears:
            nn.init.kaiming_uniform_(linear.weight, nonlinearity="linear")
            nn.init.ones_(linear.bias)
        self.linears = nn.ModuleList(linears)
        self.output_linear = WeightReadLinear(features, channels)
        nn.init.kaiming_uniform_(self.output_linear.weight, nonlinearity="linear")
        nn.init.zeros_(self.output_linear.bias)
        with torch.no_grad():
            self.output_linear.weight.mul_(1.0 / math.sqrt(num_taps))

    def forward(self, positions: Tensor) -> Tensor:
        """Compute the kernels: (L,) positions in [-1, 1], float32 or wider -> (L, C)."""
        t = positions.unsqueeze(-1)
        with without_autocast(t):
            h: Tensor = self.filters[0](t)
            for gabor, linear in zip(self.filters[1:], self.linears, strict=True):
                h = gabor(t) * wide_linear(linear, h)
            return wide_linear(self.output_linear, h)


def wide_linear(linear: Any, x: Tensor) -> Tensor:
    """Apply a linear layer in the dtype of `x`, float32 or wider."""
    if weight_is_plain(linear):
        return F.linear(x, wide(linear.weight), None if linear.bias is None else wide(linear.bias))
    y: Tensor = linear(x.to(next(linear.parameters()).dtype))
    return y.to(x.dtype)
