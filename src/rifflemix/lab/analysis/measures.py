"""Measures of matrices, spectra, distributions and permutations."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.lab.analysis.bound import one_infinity_norm

_TINY = 1e-300


def singular_values(x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Compute descending singular values of the valid rows, in float64.

    The input is (B, N, C).

    Returns:
        (B, min(N, C)).
    """
    wide = x.detach().double()
    if key_padding_mask is not None:
        wide = wide.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
    values: Tensor = torch.linalg.svdvals(wide)
    return values


def effective_rank(values: Tensor) -> Tensor:
    """Compute exp of the entropy of normalized singular values (..., R).

    The values are normalized to sum 1. The result is 0 if all values are 0.

    Source: Roy and Vetterli 2007, "The effective rank", equation (4).
    """
    values = values.double()
    total = values.sum(-1, keepdim=True)
    share = values / total.clamp_min(_TINY)
    entropy = -torch.special.xlogy(share, share).sum(-1)
    return torch.where(total.squeeze(-1) > 0, entropy.exp(), torch.zeros_like(entropy))


def stable_rank(values: Tensor) -> Tensor:
    """Divide the sum of squared singular values by the largest square.

    The input is (..., R). The result is 0 for zeros.
    """
    squares = values.double().square()
    return squares.sum(-1) / squares.amax(-1).clamp_min(_TINY)


def second_over_first(values: Tensor) -> Tensor:
    """Divide the second of descending singular values (..., R) by the first.

    The result is 0 for rank 1 and for zeros.
    """
    if values.shape[-1] < 2:
        return values.new_zeros(values.shape[:-1], dtype=torch.float64)
    largest = values[..., 0].double()
    return values[..., 1].double() / largest.clamp_min(_TINY)


def selection_values(index: Tensor, count: int) -> Tensor:
    """Compute the singular values of 0/1 matrices that select rows.

    The matrix of a channel is M[n, index[n]] = 1. M^T M is diagonal and counts how often each row
    is selected. Its roots are the singular values: all 1 for a permutation, and sqrt(2) and 0 if
    one row replaces another.

    Args:
        index: (N, C) int64, the selected row for each output n and channel c.
        count: rows to select from.

    Returns:
        (C, N) float64, descending.
    """
    counts = index.new_zeros(count, index.shape[1]).scatter_add_(0, index, torch.ones_like(index))
    roots = counts.T.double().sqrt().sort(dim=1, descending=True).values
    return roots[:, : index.shape[0]]


def rank_residual(x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Compute the relative distance of tokens from equal rows: (B,).

    The distance of tokens (B, N, C) is divided by the norm of the tokens. Both use the norm of
    CSP's theorem 1. The common row is the median of each channel over the valid tokens, because the
    median minimizes the column sums of the norm. The result is 0 if all tokens are equal.

    Source: CSP (Yuan and Xu), equation (6).
    """
    wide = x.detach().double()
    rows = []
    for sample in range(len(wide)):
        tokens = wide[sample]
        if key_padding_mask is not None:
            tokens = tokens[~key_padding_mask[sample]]
        if not len(tokens):
            rows.append(wide.new_zeros(1))
            continue
        centre = _median(tokens)
        size = one_infinity_norm(tokens.unsqueeze(0))
        rows.append(one_infinity_norm((tokens - centre).unsqueeze(0)) / size.clamp_min(_TINY))
    return torch.cat(rows)


def _median(tokens: Tensor) -> Tensor:
    """Return the median (1, C) of (N, C).

    `torch.quantile` supports at most 16 million numbers.
    """
    ordered, count = tokens.sort(dim=0).values, len(tokens)
    median: Tensor = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return median.unsqueeze(0)


def entropy(probabilities: Tensor, dim: int = -1) -> Tensor:
    """Compute the entropy along `dim` in nats (0 log 0 is 0)."""
    nats: Tensor = -torch.special.xlogy(probabilities, probabilities).sum(dim)
    return nats


def displacement(index: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Return how far each valid value moved forward: (values,) int64.

    This is n - index.

    Args:
        index: (B, N, C), see `permutation_of`.
        key_padding_mask: (B, N) bool, True = padding.
    """
    moved = torch.arange(index.shape[1], device=index.device)[None, :, None] - index
    return moved.flatten() if key_padding_mask is None else moved[~key_padding_mask].flatten()


def distinct_permutations(index: Tensor) -> tuple[Tensor, Tensor]:
    """Count the different permutations of the channels of each sample.

    Args:
        index: (B, N, C), see `permutation_of`.

    Returns:
        (B,) number of permutations, and (B,) share of channels with the most frequent permutation.
    """
    numbers, shares = [], []
    for sample in index:
        counts = sample.unique(dim=1, return_counts=True)[1]
        numbers.append(len(counts))
        shares.append(float(counts.max()) / sample.shape[1])
    return torch.tensor(numbers), torch.tensor(shares, dtype=torch.float64)
