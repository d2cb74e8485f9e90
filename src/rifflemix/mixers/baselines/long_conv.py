"""Global convolution with a kernel from a small network: the mixer of CCNN."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_positive
from rifflemix.mixers._convolution.long_convolution import (
    NO_ONNX,
    KernelNetwork,
    fft_convolution,
)
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import mix_valid_tokens
from rifflemix.ops.dropout.backends import dropout as drop
from rifflemix.ops.precision import wide

_FIRST_WIDTH = 0.075
# Mean of the initial window parameter gamma of the first filters.
_MEAN_GAMMA = 6.0
# Initial causal kernels, in window widths: the range of the filter centers, and the lag at which
# the window falls to 0.1. The taps of the released code end at this lag.
_REACH, _END = 1.667, math.sqrt(2.0 * math.log(10.0))


class LongConv(TokenMixer):
    """y = gelu(W_2 gelu(W_1 (k * x))): the branch of a CCNN block, computed by FFT.

    The kernel k of each channel is a function of the relative position t = lag / max_length in
    (-1, 1): a network of Gabor filters times a Gaussian window exp(-(t / width)^2 / 2). The kernel
    does not depend on the length of the input. The mixer learns the logarithm of the width, so the
    width stays positive. The released code learns the width itself.

    Causal kernels have the initial values of the released code. Its unit of position is half the
    sequence, so its width is twice the width here.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` is ignored.
            `dropout` acts between W_1 and W_2, as in the paper's block.
        features: width of the kernel network.
        kernel_layers: number of products with a filter in the kernel network.
        frequency: scale of the initial filter frequencies. The paper tunes it for each task.
            Default: `max_length` / 12, or `max_length` / 24 if causal, for less than one half turn
            per token.
        width: initial width of the window, in units of `max_length`.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an option out of range.

    Source: Knigge et al. 2023, "Modelling Long Range Dependencies in N-D: From Task-Specific to a
    General Purpose CNN", section 4; kernels: Romero et al. 2022, "FlexConv".

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("long_conv", 64, max_length=1000)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="long_conv",
        title="Continuous long convolution (CCNN)",
        paper="Knigge et al. 2023, Modelling Long Range Dependencies in N-D: From Task-Specific "
        "to a General Purpose CNN",
        equations="section 4, FlexConv",
        complexity="O(N C log N)",
        cost_exponent=1.0,
        causal=True,
        needs_max_length=True,
        no_onnx=NO_ONNX,
    )

    def __init__(
        self,
        dim: int,
        *,
        features: int = 32,
        kernel_layers: int = 3,
        frequency: float | None = None,
        width: float = _FIRST_WIDTH,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.span = self.max_length or 1
        width = check_positive("width", width)
        sides = 1 if self.causal else 2
        half_turns = self.span / (2.0 * _MEAN_GAMMA) * sides / 2.0
        self.kernel = KernelNetwork(
            self.dim,
            features=features,
            num_layers=kernel_layers,
            frequency=half_turns if frequency is None else frequency,
            num_taps=_first_taps(width, self.span) if self.causal else 2 * self.span - 1,
            reach=_REACH * width if self.causal else None,
        )
        # Shape (1,) because FSDP2 cannot shard scalars.
        self.log_width = nn.Parameter(torch.full((1,), math.log(width)))
        self.bias = nn.Parameter(torch.zeros(self.dim))
        self.pointwise = nn.Linear(self.dim, self.dim)
        self.proj = nn.Linear(self.dim, self.dim)
        for linear in (self.pointwise, self.proj):
            nn.init.kaiming_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = mix_valid_tokens(self._convolve, x, key_padding_mask)
        y = drop(F.gelu(self.pointwise(y)), self.dropout_now)
        return F.gelu(self.proj(y))

    def _convolve(self, x: Tensor, mask: Tensor | None) -> Tensor:
        forward, backward = self._kernels(x.shape[1])
        y = fft_convolution(wide(x), forward, backward, backward_from="present")
        return (y + wide(self.bias)).to(x.dtype)

    def _kernels(self, length: int) -> tuple[Tensor, Tensor | None]:
        """Sample (C, N) at lags 0 .. N - 1, and (C, N) at 0 (set to zero) .. -(N - 1)."""
        lags = torch.arange(length, device=self.bias.device, dtype=wide(self.bias).dtype)
        forward = self._sampled(lags)
        if self.causal:
            return forward, None
        return forward, self._sampled(-lags) * (lags > 0)

    def _sampled(self, lags: Tensor) -> Tensor:
        positions = lags / self.span
        window = torch.exp(-0.5 * (positions / wide(self.log_width).exp()).square())
        kernel: Tensor = self.kernel(positions)
        return kernel.mT * window

    def no_weight_decay(self) -> set[str]:
        return {"log_width"}


def _first_taps(width: float, span: int) -> int:
    """Count the lags at which the initial causal window is at least 0.1."""
    return min(span, 1 + math.ceil(_END * width * (span - 1)))
