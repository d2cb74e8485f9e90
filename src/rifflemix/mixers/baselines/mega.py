"""MEGA: gated single-head attention over an exponential moving average."""

from __future__ import annotations

from typing import Any, ClassVar

from rifflemix.mixers._convolution.fft_convolution import NO_ONNX
from rifflemix.mixers.base import MixerCard
from rifflemix.mixers.baselines.mega_layer import MegaLayer


class Mega(MegaLayer):
    """MEGA with attention over the whole sequence, or with CSP instead of attention.

    See `MegaLayer` for the formula, its residual connection and the options.

    Args:
        dim: channels C.
        z_dim: channels of queries and keys. Default: max(1, C // 2).
        hidden_dim: channels of the values. Default: 2 C.
        ema_dim: moving averages per channel.
        bidirectional: also average over later tokens. Default: True unless `causal`.
        attention_fn: "softmax" or "laplace".
        hidden_dropout: probability of dropping an entry of the values.
        layer_dropout: probability of dropping an entry of the moving average and the new value.
        mixing: "attention" or "csp". "csp" supports neither `causal=True` nor streaming.
        csp_options: options of `CSP` for mixing="csp".
        shared: the other arguments of `TokenMixer`. `max_length` sets the size of the position
            bias.

    Raises:
        InputError: an option out of range, or two options that exclude each other.

    Source: Ma et al. 2023, equations (3)-(14); laplace: (16).
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

    def __init__(
        self,
        dim: int,
        *,
        z_dim: int | None = None,
        hidden_dim: int | None = None,
        ema_dim: int = 16,
        bidirectional: bool | None = None,
        attention_fn: str = "softmax",
        hidden_dropout: float = 0.0,
        layer_dropout: float = 0.0,
        mixing: str = "attention",
        csp_options: dict[str, Any] | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(
            dim,
            chunk_size=None,
            z_dim=z_dim,
            hidden_dim=hidden_dim,
            ema_dim=ema_dim,
            bidirectional=bidirectional,
            attention_fn=attention_fn,
            hidden_dropout=hidden_dropout,
            layer_dropout=layer_dropout,
            mixing=mixing,
            csp_options=csp_options,
            **shared,
        )
