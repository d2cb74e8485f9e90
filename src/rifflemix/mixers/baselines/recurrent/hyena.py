"""Hyena: long convolutions between elementwise gates, with kernels from a small network."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive
from rifflemix.errors import bad_argument
from rifflemix.mixers._convolution.long_convolution import (
    NO_ONNX,
    fft_convolution,
    wide_linear,
)
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.baselines.recurrent.recurrent_mixer import ShortConvolution
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import fill_valid_tokens, last_tokens, mix_valid_tokens
from rifflemix.nn.layers import WeightReadLinear
from rifflemix.ops.dropout.backends import dropout as drop
from rifflemix.ops.precision import wide, without_autocast

_SHORT = 3
# The window of a channel falls to 0.01 between 0.3 and 1.5 times `max_length`.
_TARGET, _FASTEST, _SLOWEST = 0.01, 0.3, 1.5


class Hyena(TokenMixer):
    """y = W_o (q * (h conv (k * v))): a Hyena recurrence of order 2.

    The three projections q, k and v pass a short convolution of 3 tokens. The long kernel h of each
    channel is a network of the position t = lag / (max_length - 1) times exp(-decay t). The decays
    of the channels are fixed, from fast to slow. A learned multiple of the current token is added
    to the convolution.

    Without `causal` the network has a second kernel per channel, for the current and the later
    tokens, and the short convolution is centered. Streaming stores the products k * v of
    `max_length` tokens, and a step costs O(max_length C).

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` is ignored.
            `dropout` acts on the products k * v.
        filter_width: width of the network that generates the kernels.
        position_features: inputs of this network: the position t, then cosines and sines of
            (position_features - 1) / 2 frequencies. An odd number from 3.
        frequency: initial frequency of the sines in this network.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an option out of range.

    Source: Poli et al. 2023, "Hyena Hierarchy: Towards Larger Convolutional Language Models",
    Definition 3.1, sections 3.3 and 3.4, appendix A; both directions: Fu et al. 2023, "Monarch
    Mixer".

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("hyena", 64, max_length=1024, causal=True)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="hyena",
        title="Hyena",
        paper="Poli et al. 2023, Hyena Hierarchy: Towards Larger Convolutional Language Models",
        equations="Definition 3.1, sections 3.3 and 3.4",
        complexity="O(N C log N)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
        needs_max_length=True,
        no_onnx=NO_ONNX,
    )

    def __init__(
        self,
        dim: int,
        *,
        filter_width: int = 64,
        position_features: int = 33,
        frequency: float = 14.0,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.in_proj = nn.Linear(self.dim, 3 * self.dim)
        ahead = 0 if self.causal else 1
        self.short = ShortConvolution(3 * self.dim, _SHORT, bias=True, ahead=ahead)
        self.kernel = HyenaKernel(
            self.dim,
            directions=1 if self.causal else 2,
            max_length=self.max_length or 1,
            width=filter_width,
            position_features=position_features,
            frequency=frequency,
        )
        self.skip = nn.Parameter(torch.randn(self.dim))
        self.out_proj = nn.Linear(self.dim, self.dim)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return mix_valid_tokens(lambda x, mask: self._mixed(x, mask)[0], x, key_padding_mask)

    def _mixed(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs, the projections and the products k * v. Padding comes last."""
        projected = self.in_proj(x)
        if mask is not None and not self.causal:
            projected = projected.masked_fill(mask.unsqueeze(-1), 0.0)
        q, product = self._gated(self.short(projected))
        if mask is not None:
            product = product.masked_fill(mask.unsqueeze(-1), 0.0)
        kernels = self.kernel(x.shape[1])
        forward, backward = (kernels, None) if self.causal else kernels.split(self.dim)
        tokens = wide(product)
        y = fft_convolution(tokens, forward, backward, backward_from="present")
        return self._read(q, y, tokens), projected, product

    def _gated(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = projected.chunk(3, -1)
        return q, drop(k * v, self.dropout_now)

    def _read(self, q: Tensor, y: Tensor, tokens: Tensor) -> Tensor:
        y = y + tokens * wide(self.skip)
        return self.out_proj(q * y.to(q.dtype))

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create zeros for the tokens before the first token.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens.

        Returns:
            "past" (B, 2, 3 C), the last two projections, and "products" (B, max_length, C), the
            products k * v from new to old.
        """
        length = self.max_length or 1
        products = torch.zeros(batch_size, length, self.dim, device=device, dtype=dtype)
        return {"past": self.short.start(batch_size, device, dtype), "products": products}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        projected, past = self.in_proj(x_t.unsqueeze(1)), state["past"]
        q, product = self._gated(self.short(projected, past))
        products = torch.cat((product.to(x_t.dtype), state["products"][:, :-1]), 1)
        kernel = self.kernel(products.shape[1])
        y = torch.einsum("cl,blc->bc", kernel, wide(products)).unsqueeze(1)
        after = {"past": self.short.past_after(projected, None, past), "products": products}
        return self._read(q, y, wide(product)).squeeze(1), after

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return fill_valid_tokens(self._fill, x, key_padding_mask)

    def _fill(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        y, projected, product = self._mixed(x, mask)
        newest, _ = last_tokens(product, mask, x.shape[1])
        missing = (self.max_length or 1) - x.shape[1]
        products = F.pad(newest.flip(1), (0, 0, 0, missing))
        return y, {"past": self.short.past_after(projected, mask, None), "products": products}

    def no_weight_decay(self) -> set[str]:
        return {"skip"}


class HyenaKernel(nn.Module):
    """Kernels of a network with sine activations, times exponential windows.

    Args:
        channels: kernels of each direction.
        directions: 1, or 2 for further kernels over the later tokens.
        max_length: lag at which the position is 1, plus 1.
        width: width of the three hidden layers of the network.
        position_features: inputs of the network; see `Hyena`.
        frequency: initial frequency of the sines.

    Raises:
        InputError: a size out of range.
    """

    keeps_start = True  # host models must not reinitialize its linear layers

    def __init__(
        self,
        channels: int,
        *,
        directions: int,
        max_length: int,
        width: int,
        position_features: int,
        frequency: float,
    ) -> None:
        super().__init__()
        width = check_integer("filter_width", width, 1)
        features = check_integer("position_features", position_features, 3)
        if features % 2 == 0:
            raise bad_argument("position_features", "an odd number", features)
        self.span = max(1, max_length - 1)
        self.max_length, self.directions = max_length, directions
        self.bands = (features - 1) // 2
        self.linears = nn.ModuleList(
            (
                WeightReadLinear(features, width),
                WeightReadLinear(width, width),
                WeightReadLinear(width, width),
            )
        )
        start = check_positive("frequency", frequency)
        self.frequency = nn.Parameter(torch.full((width,), start))
        self.output_linear = WeightReadLinear(width, directions * channels, bias=False)

    def forward(self, length: int) -> Tensor:
        """Compute (directions C, N) kernels at the lags 0 to `length` - 1, in float32 or wider."""
        frequency = wide(self.frequency)
        lags = torch.arange(length, device=frequency.device, dtype=frequency.dtype)
        with without_autocast(lags):
            h = self._features(lags.unsqueeze(-1))
            for linear in self.linears:
                h = torch.sin(frequency * wide_linear(linear, h))
            values = wide_linear(self.output_linear, h)
            return (values * self._windows(lags, values.shape[1] // self.directions)).mT

    def _features(self, lags: Tensor) -> Tensor:
        """Compute (N, features): t, then cos and -sin of `bands` frequencies."""
        bands = torch.linspace(
            1e-4, self.bands - 1, self.bands, device=lags.device, dtype=lags.dtype
        )
        angles = lags * bands * (2.0 * math.pi / self.max_length)
        return torch.cat((lags / self.span, angles.cos(), -angles.sin()), -1)

    def _windows(self, lags: Tensor, channels: int) -> Tensor:
        fastest, slowest = (-math.log(_TARGET) / reach for reach in (_FASTEST, _SLOWEST))
        decays = torch.linspace(slowest, fastest, channels, device=lags.device, dtype=lags.dtype)
        window = torch.exp(-decays * (lags / self.span).unsqueeze(-1))
        return window.repeat(1, self.directions)
