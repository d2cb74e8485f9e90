"""MEGA and MEGA-chunk: gated single-head attention over an exponential moving average."""

from __future__ import annotations

from typing import Any, ClassVar

from rifflemix.checks import check_integer
from rifflemix.mixers._convolution.long_convolution import NO_ONNX
from rifflemix.mixers.baselines.mega_layer import MegaLayer
from rifflemix.mixers.cards import MixerCard


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


_CHUNK = 128
_FEWEST_CHUNKS = 8


class MegaChunk(MegaLayer):
    """MEGA with attention inside chunks and a moving average across chunks.

    Chunks cover the valid tokens; the last chunk may be shorter. The streaming state contains keys
    and values of the current chunk only, so its memory is bounded. See `MegaLayer` for the formula,
    the residual connection and the options.

    Args:
        dim: channels C.
        chunk_size: tokens in a chunk. It sets the size of the position bias. Default: 128, as
            published, or an eighth of `max_length` if that is less.
        shared: other arguments of `MegaLayer` and `TokenMixer`.

    Raises:
        InputError: an option is out of range.

    Source: Ma et al. 2023, equations (3)-(14) and section 3.5; laplace: (16).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("mega_chunk", 64, causal=True, chunk_size=32)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
        >>> mixer.state_size(1000) <= mixer.state_size(10**6)
        True
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
        **shared: Any,
    ) -> None:
        if chunk_size is None:
            chunk_size = _default_chunk_size(shared.get("max_length"))
        chunk_size = check_integer("chunk_size", chunk_size, 1)
        super().__init__(dim, chunk_size=chunk_size, **shared)


def _default_chunk_size(max_length: Any) -> int:
    if max_length is None:
        return _CHUNK
    return min(_CHUNK, max(1, check_integer("max_length", max_length, 1) // _FEWEST_CHUNKS))
