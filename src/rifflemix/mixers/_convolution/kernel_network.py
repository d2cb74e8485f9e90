"""A small network that maps relative positions to the values of a convolution kernel."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive
from rifflemix.mixers._convolution.fft_convolution import wide
from rifflemix.nn.layers import WeightReadLinear, weight_is_plain
from rifflemix.ops.precision import as_default, wide_default, without_autocast

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
