"""Distance of stacked permutation mixers from rank collapse, and CSP's bound on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rifflemix.checks import check_tokens
from rifflemix.errors import bad_argument


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
    tokens = x.detach().to(torch.promote_types(x.dtype, torch.float32))
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
