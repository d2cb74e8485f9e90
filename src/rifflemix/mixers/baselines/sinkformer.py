"""Sinkformer: attention with a (nearly) doubly stochastic matrix instead of the softmax."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_integer, check_positive
from rifflemix.mixers._attention.multi_head import MultiHeadMixer
from rifflemix.mixers.base import MixerCard
from rifflemix.ops.dropout.unchecked import dropout as drop


class Sinkformer(MultiHeadMixer):
    """Attention balanced by Sinkhorn steps in the log domain.

    The scores q k^T / sqrt(D) are scaled by rows and columns in turn, rows first, so one step is
    softmax attention. An odd number of steps ends on rows, whose weights then sum to 1; an even
    number ends on columns.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        num_iterations: row and column steps together, at least 1; the paper uses 3 and 5.
        epsilon: entropic regularisation; the scores are divided by it.
        bias: add a bias to the Q/K/V projections.
        out_bias: add a bias to the output projection.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: no iteration, or an epsilon that is not above 0.

    Source: Sander et al. 2022, "Sinkformers: Transformers with Doubly Stochastic Attention",
    section 3.
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
        bias: bool = True,
        out_bias: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, bias=bias, out_bias=out_bias, **shared)
        self.num_iterations = check_integer("num_iterations", num_iterations, 1)
        self.epsilon = check_positive("epsilon", epsilon)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        scores = q @ k.mT * (self.head_dim**-0.5 / self.epsilon)
        weights = balanced_attention(scores, self.num_iterations, key_padding_mask)
        return drop(weights, self.dropout_p()).to(v.dtype) @ v

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_iterations={self.num_iterations}"


# Stands for the log of zero. Finite, so that a row or column without a valid entry gives zeros
# and zero gradients where -inf would give NaN.
_LOG_ZERO = -1e30


def balanced_attention(
    scores: Tensor, num_iterations: int, key_padding_mask: Tensor | None = None
) -> Tensor:
    """exp(scores), scaled to sum to 1 along rows and columns in turn, rows first.

    The sums run over valid tokens, each sample by itself, and no test for convergence ends the
    steps early: that would couple the samples of a batch.

    Args:
        scores: (B, H, N, N), rows queries, columns keys.
        num_iterations: row and column steps together.
        key_padding_mask: (B, N) bool, True = padding; such rows and columns come out as zeros.

    Returns:
        (B, H, N, N), float32 or float64: N times the transport plan of uniform marginals 1 / N.
    """
    log_weights = scores.to(torch.promote_types(scores.dtype, torch.float32))
    empty = None
    if key_padding_mask is not None:
        padded = key_padding_mask[:, None, :, None]
        empty = padded | padded.mT
        log_weights = log_weights.masked_fill(empty, _LOG_ZERO)
    for step in range(num_iterations - 1):
        log_weights = log_weights.log_softmax(dim=-2 if step % 2 else -1)
        if empty is not None:  # a row or column without a valid entry has become uniform
            log_weights = log_weights.masked_fill(empty, _LOG_ZERO)
    weights = log_weights.softmax(dim=-1 if num_iterations % 2 else -2)
    return weights if empty is None else weights.masked_fill(empty, 0.0)
