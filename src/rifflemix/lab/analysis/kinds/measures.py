"""Measures of matrices, spectra, distributions and permutations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rifflemix.checks import check_tokens
from rifflemix.errors import bad_argument
from rifflemix.ops.precision import wide


@dataclass(frozen=True)
class CollapseBound:
    """Residuals of a stack and their bounds, both (L + 1, B): row l is after l layers.

    Attributes:
        residual: (1, infinity)-norm of the distance to a matrix of equal rows. The layers also map
            the first center, and the distance is measured from the result. So the residual is at
            least the smallest such distance.
        bound: C^(l/2) (lipschitz * beta)^l times the first residual, with beta the largest
            1-norm among the first l weights.
        change: (L, B) relative change of the distance of a channel from its center by the
            permutation of each layer; the maximum over channels. Equation (12) of the proof states
            that it is 0. The bound alone is too loose to detect a map that is not a permutation.
    """

    residual: Tensor
    bound: Tensor
    change: Tensor

    def holds(self, relative_tolerance: float = 1e-5) -> bool:
        """Check that no residual is above its bound, up to rounding."""
        return bool((self.residual <= self.bound * (1.0 + relative_tolerance)).all())


def one_infinity_norm(x: Tensor) -> Tensor:
    """Compute sqrt(|X|_1 |X|_inf) of each sample.

    The factors are the largest column sum and the largest row sum of |x|.

    Args:
        x: (B, N, C).

    Returns:
        (B,).

    Source: CSP (Yuan and Xu), below equation (6).
    """
    check_tokens("x", x)
    size = x.abs()
    return (size.sum(dim=1).amax(dim=1) * size.sum(dim=2).amax(dim=1)).sqrt()


def collapse_bound(
    x: Tensor,
    weights: Sequence[Tensor],
    permute: Callable[[Tensor], Tensor] | Sequence[Callable[[Tensor], Tensor]],
    *,
    activation: Callable[[Tensor], Tensor] | None = None,
    lipschitz: float = 1.0,
) -> CollapseBound:
    """Run X <- f(permute(X W)) and compare residuals with CSP's theorem 1.

    The residual is the distance to rows that are all equal. The first center is the median of each
    channel. A layer maps the center in the same way as a row. The proof of the theorem does the
    same: the inequality holds for every first center, hence for the best one.

    Args:
        x: (B, N, C) tokens.
        weights: L matrices (C, C) that multiply from the right (the transpose of an nn.Linear
            weight).
        permute: maps (B, N, C) to the same shape by permuting the tokens of each channel; a
            sequence contains one function per layer.
        activation: elementwise function; None is the identity.
        lipschitz: Lipschitz constant of the activation.

    Returns:
        The residuals and bounds, in at least float32.

    Raises:
        InputError: a weight has another shape, or the constant is not positive.

    Source: CSP (Yuan and Xu), theorem 1 and appendix A.
    """
    check_tokens("x", x)
    channels = x.shape[2]
    if not lipschitz > 0:
        raise bad_argument("lipschitz", "over 0", lipschitz)
    for weight in weights:
        if tuple(weight.shape) != (channels, channels):
            raise bad_argument("weights", f"shape {(channels, channels)}", tuple(weight.shape))
    permutes = [permute] * len(weights) if callable(permute) else list(permute)
    if len(permutes) != len(weights):
        raise bad_argument("permute", f"one, or {len(weights)} of them", len(permutes))
    tokens = wide(x.detach())
    centre = tokens.median(dim=1, keepdim=True).values
    residual = [one_infinity_norm(tokens - centre)]
    bound = [residual[0]]
    change = []
    beta = tokens.new_zeros(())
    for layer, (weight, apply) in enumerate(zip(weights, permutes, strict=True), start=1):
        matrix = weight.detach().to(tokens.dtype)
        values, centre = tokens @ matrix, centre @ matrix
        tokens = apply(values)
        change.append(_distance_change(values, tokens, centre))
        if activation is not None:
            tokens, centre = activation(tokens), activation(centre)
        beta = torch.maximum(beta, matrix.abs().sum(dim=0).amax())
        residual.append(one_infinity_norm(tokens - centre))
        bound.append((channels**0.5 * lipschitz * beta) ** layer * residual[0])
    changes = torch.stack(change) if change else tokens.new_zeros(0, len(tokens))
    return CollapseBound(torch.stack(residual), torch.stack(bound), changes)


def _distance_change(before: Tensor, after: Tensor, centre: Tensor) -> Tensor:
    """Return the relative change of distances from the center: (B,).

    The distance is the 1-norm of each channel around its center, before and after a permutation.
    """
    old, new = ((x - centre).abs().sum(dim=1) for x in (before, after))
    return ((new - old).abs() / old.clamp_min(torch.finfo(old.dtype).tiny)).amax(dim=1)


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
    return torch.linalg.svdvals(wide)


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
    return -torch.special.xlogy(probabilities, probabilities).sum(dim)


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
