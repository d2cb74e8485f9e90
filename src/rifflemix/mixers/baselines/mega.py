"""MEGA: gated single-head attention over an exponential moving average."""

from __future__ import annotations

from typing import ClassVar

from rifflemix.mixers._convolution.fft_convolution import NO_ONNX
from rifflemix.mixers.base import MixerCard
from rifflemix.mixers.baselines.mega_layer import MegaLayer


class Mega(MegaLayer):
    """MEGA with attention over the whole sequence, or with CSP instead of attention.

    See `MegaLayer` for the formula, the residual connection and the options.

    Args:
        dim: channels C.
        shared: other arguments of `MegaLayer` and `TokenMixer`. `max_length` sets the size of the
            position bias. mixing="csp" supports neither `causal=True` nor streaming.

    Raises:
        InputError: an option is out of range, or two options exclude each other.

    Source: Ma et al. 2023, equations (3)-(14); laplace: (16).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("mega", 64, max_length=128, z_dim=32, hidden_dim=128)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="mega",
        title="MEGA",
        paper="Ma et al. 2023, Mega: Moving Average Equipped Gated Attention",
        equations="(3)-(14), (16)",
        complexity="O(N^2 C)",
        cost_exponent=2.0,
        causal=True,
        streaming=True,
        needs_max_length=True,
        thread_sums="the gradient of the position bias",
        no_onnx=NO_ONNX,
    )

    fixed_options = frozenset({"chunk_size"})
