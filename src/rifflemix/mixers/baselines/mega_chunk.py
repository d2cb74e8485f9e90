"""MEGA-chunk: MEGA with attention inside chunks, in linear time."""

from __future__ import annotations

from typing import Any, ClassVar

from rifflemix.checks import check_integer
from rifflemix.mixers._convolution.fft_convolution import NO_ONNX
from rifflemix.mixers.base import MixerCard
from rifflemix.mixers.baselines.mega_layer import MegaLayer

_CHUNK = 128
_FEWEST_CHUNKS = 8


class MegaChunk(MegaLayer):
    """MEGA with attention inside chunks and a moving average across chunks.

    Chunks cover the valid tokens; the last chunk may be shorter. The streaming state contains keys
    and values of the current chunk only, so its memory is bounded. See `MegaLayer` for the formula
    and its residual connection.

    Args:
        dim: channels C.
        chunk_size: tokens in a chunk. It sets the size of the position bias. Default: 128, as
            published, or an eighth of `max_length` if that is less.
        z_dim: channels of queries and keys. Default: max(1, C // 2).
        hidden_dim: channels of the values. Default: 2 C.
        ema_dim: moving averages per channel.
        bidirectional: also average over later tokens. Default: True unless `causal`.
        attention_fn: "softmax" or "laplace".
        hidden_dropout: probability of dropping an entry of the values.
        layer_dropout: probability of dropping an entry of the moving average and the new value.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an option out of range.

    Source: Ma et al. 2023, equations (3)-(14) and section 3.5; laplace: (16).
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="mega_chunk",
        title="MEGA-chunk",
        paper="Ma et al. 2023, Mega: Moving Average Equipped Gated Attention",
        equations="(3)-(14), (16), section 3.5",
        complexity="O(N C (log N + chunk))",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        thread_sums="gradients of the queries, keys and position bias, at some lengths",
        no_onnx=NO_ONNX,
    )

    # CSP mixes the whole sequence, so chunks would have no effect.
    fixed_options = frozenset({"mixing", "csp_options"})

    def __init__(
        self,
        dim: int,
        *,
        chunk_size: int | None = None,
        z_dim: int | None = None,
        hidden_dim: int | None = None,
        ema_dim: int = 16,
        bidirectional: bool | None = None,
        attention_fn: str = "softmax",
        hidden_dropout: float = 0.0,
        layer_dropout: float = 0.0,
        **shared: Any,
    ) -> None:
        if chunk_size is None:
            chunk_size = _default_chunk_size(shared.get("max_length"))
        super().__init__(
            dim,
            chunk_size=check_integer("chunk_size", chunk_size, 1),
            z_dim=z_dim,
            hidden_dim=hidden_dim,
            ema_dim=ema_dim,
            bidirectional=bidirectional,
            attention_fn=attention_fn,
            hidden_dropout=hidden_dropout,
            layer_dropout=layer_dropout,
            **shared,
        )


def _default_chunk_size(max_length: Any) -> int:
    if max_length is None:
        return _CHUNK
    return min(_CHUNK, max(1, check_integer("max_length", max_length, 1) // _FEWEST_CHUNKS))
