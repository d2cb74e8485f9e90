"""FNet: the real part of the Fourier transform over tokens and channels, without parameters."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.errors import check_choice
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import mix_valid_tokens

NORMS = ("backward", "ortho")


class FNet(TokenMixer):
    """y = Re(F_tokens(F_channels(x))).

    With a padding mask, each sample is transformed over its valid tokens only (chirp z-transform),
    so padding does not change the result. The transform uses float32, or float64 for float64
    inputs.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` and `dropout`
            are ignored.
        norm: scale as in torch.fft. "backward" does not scale, as in the paper: its blocks
            normalize after mixing. "ortho" divides by sqrt(N C) and suits blocks that normalize
            before mixing.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an unknown `norm`.

    Source: Lee-Thorp et al. 2022, "FNet: Mixing Tokens with Fourier Transforms", equation (3).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("fnet", 64, norm="ortho")
        >>> x = torch.randn(2, 100, 64)
        >>> torch.allclose(mixer(x), torch.fft.fft2(x, norm="ortho").real, atol=1e-4)
        True
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="fnet",
        title="FNet",
        paper="Lee-Thorp et al. 2022, FNet: Mixing Tokens with Fourier Transforms",
        equations="(3)",
        complexity="O(N C log(N C))",
        cost_exponent=1.0,
        no_onnx="ONNX transforms no complex numbers",
    )

    def __init__(self, dim: int, *, norm: str = "backward", **shared: Any) -> None:
        super().__init__(dim, **shared)
        check_choice("norm", norm, NORMS)
        self.norm = norm

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return mix_valid_tokens(self._transform, x, key_padding_mask)

    def _transform(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if key_padding_mask is None:
            whole: Tensor = torch.fft.fft2(wide, dim=(1, 2), norm=self.norm)
            return whole.real.to(x.dtype)
        lengths = (~key_padding_mask).sum(1).clamp(min=1)
        y = fft_of_lengths(torch.fft.fft(wide, dim=2, norm=self.norm), lengths)
        if self.norm == "ortho":
            y = y / lengths.to(wide.dtype).sqrt()[:, None, None]
        return y.real.to(x.dtype)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, norm={self.norm!r}"


def fft_of_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    """Compute Fourier transforms along dim 1 over the first tokens of each sample.

    Bluestein's identity j k = (j^2 + k^2 - (k - j)^2) / 2 turns a transform of any length into a
    convolution with a chirp. Transforms of one length for all samples compute this convolution.

    Args:
        x: (B, N, C) complex, zero from position lengths[b] on.
        lengths: (B,) integers from 1 to N.

    Returns:
        (B, N, C) complex; values from position lengths[b] on are undefined.
    """
    tokens = x.shape[1]
    padded = 2 * tokens
    position = torch.arange(tokens, device=x.device)
    # The phase pi j^2 / n is reduced modulo 2 pi in integers to avoid rounding.
    period = 2 * lengths.unsqueeze(1)
    angle = (position.square() % period).to(x.real.dtype) / period * (2 * math.pi)
    chirp = torch.polar(torch.ones_like(angle), angle).unsqueeze(-1)
    # The even chirp at indices 0 ... N-1, one unused value, and the indices -(N-1) ... -1.
    kernel = torch.cat((chirp, torch.zeros_like(chirp[:, :1]), chirp.flip(1)), dim=1)[:, :-1]
    spectrum = torch.fft.fft(x * chirp.conj(), n=padded, dim=1) * torch.fft.fft(kernel, dim=1)
    y: Tensor = torch.fft.ifft(spectrum, dim=1)[:, :tokens]
    return y * chirp.conj()
