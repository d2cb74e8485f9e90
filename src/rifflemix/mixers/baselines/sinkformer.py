"""Sinkformer: attention with a (nearly) doubly stochastic matrix instead of the softmax."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rifflemix.checks import check_integer, check_positive
from rifflemix.mixers._attention.multi_head import MultiHeadMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.dropout.backends import dropout as drop
from rifflemix.ops.precision import wide


class Sinkformer(MultiHeadMixer):
    """Attention with weights balanced by Sinkhorn steps in the log domain.

    The weights exp(q k^T / sqrt(D)) are normalized over rows and columns in turn, rows first. One
    step is softmax attention. After an odd number of steps each row sums to 1. After an even
    number each column sums to 1.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        num_iterations: total number of row and column steps, at least 1; the paper uses 3 and 5.
        epsilon: entropic regularization; the scores are divided by it.
        shared: other arguments of `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: `num_iterations` below 1, or `epsilon` not above 0.

    Source: Sander et al. 2022, "Sinkformers: Transformers with Doubly Stochastic Attention",
    section 3.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("sinkformer", 64, num_heads=4, num_iterations=3)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="sinkformer",
        title="Sinkformer",
        paper="Sander et al. 2022, Sinkformers: Transformers with Doubly Stochastic Attention",
        equations="section 3",
        complexity="O(N^2 C)",
        cost_exponent=2.0,
        permutation_equivariant=True,
    )

    def __init__(
        self,
        dim: int,
        *,
        num_iterations: int = 3,
        epsilon: float = 1.0,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.num_iterations = check_integer("num_iterations", num_iterations, 1)
        self.epsilon = check_positive("epsilon", epsilon)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        scores = q @ k.mT * (self.head_dim**-0.5 / self.epsilon)
        weights = balanced_attention(scores, self.num_iterations, key_padding_mask)
        return drop(weights, self.dropout_now).to(v.dtype) @ v

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_iterations={self.num_iterations}"


# Finite replacement for log(0): a row or column without a valid entry gives zeros and zero
# gradients. -inf would give NaN.
_LOG_ZERO = -1e30


def balanced_attention(
    scores: Tensor, num_iterations: int, key_padding_mask: Tensor | None = None
) -> Tensor:
    """Normalize exp(scores) over rows and columns in turn, rows first.

    The sums cover the valid tokens of one sample. There is no convergence test: early stopping
    would make the samples of a batch depend on each other.

    Args:
        scores: (B, H, N, N), one row per query and one column per key.
        num_iterations: total number of row and column steps.
        key_padding_mask: (B, N) bool, True = padding. Padded rows and columns are zero in the
            result.

    Returns:
        (B, H, N, N), float32 or float64: N times the transport plan with uniform marginals 1 / N.
    """
    log_weights = wide(scores)
    empty = None
    if key_padding_mask is not None:
        padded = key_padding_mask[:, None, :, None]
        empty = padded | padded.mT
        log_weights = log_weights.masked_fill(empty, _LOG_ZERO)
    for step in range(num_iterations - 1):
        log_weights = log_weights.log_softmax(dim=-2 if step % 2 else -1)
        if empty is not None:  # rows and columns without a valid entry became uniform
            log_weights = log_weights.masked_fill(empty, _LOG_ZERO)
    weights = log_weights.softmax(dim=-1 if num_iterations % 2 else -2)
    return weights if empty is None else weights.masked_fill(empty, 0.0)
