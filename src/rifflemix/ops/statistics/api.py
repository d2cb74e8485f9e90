"""Public functions of this family: they check their arguments and call a backend."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rifflemix.checks import check_bool, check_padding_mask, check_positive, check_probability
from rifflemix.ops.statistics import backends
from rifflemix.ops.statistics.common import (
    StatisticsState,
    check_bias,
    check_groups,
    check_heads,
    check_state,
    check_temperature,
    check_whole,
)


def token_statistics(
    w: Tensor,
    temperature: Tensor,
    *,
    normalize: bool = True,
    key_padding_mask: Tensor | None = None,
    return_membership: bool = False,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Any:
    """Compute token statistics self-attention without its input and output projections.

    Time and memory are O(N D). Head h defines a group. Token n belongs to group h with probability
    Pi[h, n]. Pi is a softmax over the heads. Its logit is the token's share of the energy in the
    features of that head, times the temperature. The output is y = -(w * Pi) / (1 + m). The second
    moment m of a group damps features with high energy. y is a descent direction of
    `variational_compression_rate`.

    Args:
        w: (B, H, N, D) projected tokens.
        temperature: (H,) factor of each head's logit, of any floating-point dtype.
        normalize: scale each feature to unit norm over the tokens before computing Pi. False is the
            ablation in Table 8 of the paper.
        key_padding_mask: (B, N) bool, True = padding. Padding does not change the result at valid
            positions. The result at padded positions is zero.
        return_membership: also return Pi.
        dropout_p: probability of dropping an entry of the (B, H, 1, D) factor 1 / (1 + m). There is
            no training flag: pass 0 at inference.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        y (B, H, N, D) in w's dtype, or (y, Pi) with Pi (B, H, N) in float32 (float64 for float64
        tokens). The sums of the statistics have the same dtype as Pi.

    Raises:
        InputError: wrong shape, dtype, device or probability.

    Source: ToST, equations (10), (11), (31) and (32).

    Example:
        >>> import torch, rifflemix as rm
        >>> w = torch.randn(2, 4, 100, 8)
        >>> y, membership = rm.ops.token_statistics(w, torch.ones(4), return_membership=True)
        >>> y.shape, membership.shape
        (torch.Size([2, 4, 100, 8]), torch.Size([2, 4, 100]))
    """
    check_heads("w", w)
    check_temperature(temperature, w)
    check_padding_mask(key_padding_mask, w, token_dim=2)
    check_probability("dropout_p", dropout_p)
    check_bool("normalize", normalize)
    check_bool("return_membership", return_membership)
    y, membership = backends.token_statistics(
        w, temperature, normalize, key_padding_mask, dropout_p, backend
    )
    return (y, membership) if return_membership else y


def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None = None,
    *,
    initial_state: StatisticsState | None = None,
    return_state: bool = False,
    return_membership: bool = False,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Any:
    """Compute causal token statistics, with sums over the tokens so far.

    Memory per token is constant. A sequence can be processed in pieces: pass the state after each
    piece to the next piece. The result is the same as for the whole sequence. Without dropout,
    y[:, :, n] depends only on w[:, :, :n + 1].

    Args:
        w: (B, H, N, D) projected tokens.
        temperature: (H,) factor of each head's logit, of any floating-point dtype.
        denominator_bias: (H, L), a learned number per head and position. It is added to the ratio
            of each of the D features, so the logit changes by D * temperature * bias. The position
            of a token is the number of valid tokens before it, so padding does not change it. L
            must be at least the number of all tokens, including the tokens in the state.
        initial_state: state from an earlier call, to continue a sequence. Do not cast it to a lower
            precision.
        return_state: also return the state after the last token.
        return_membership: also return Pi.
        key_padding_mask: (B, N) bool, True = padding. Padding does not change the result at valid
            positions.
        dropout_p: probability of dropping an entry of the (B, H, N, D) factor 1 / (1 + m).
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        y (B, H, N, D) in w's dtype; with the flags (y, Pi), (y, state) or (y, Pi, state). Pi
        (B, H, N) is float32 (float64 for float64 tokens). For the dtype of the sums in the state,
        see `StatisticsState`.

    Raises:
        InputError: wrong shape, dtype, device or probability, or more tokens than positions in
            `denominator_bias`. (A compiled graph does not check the position in the state. There,
            too many tokens cause an indexing error.)

    Source: ToST, equations (28), (29) and (34).

    Example:
        >>> import torch, rifflemix as rm
        >>> w, temperature = torch.randn(1, 4, 100, 8), torch.ones(4)
        >>> y = rm.ops.causal_token_statistics(w, temperature)
        >>> _, state = rm.ops.causal_token_statistics(w[:, :, :60], temperature, return_state=True)
        >>> last = rm.ops.causal_token_statistics(w[:, :, 60:], temperature, initial_state=state)
        >>> torch.allclose(last, y[:, :, 60:], atol=1e-5)
        True
    """
    check_heads("w", w)
    check_temperature(temperature, w)
    check_padding_mask(key_padding_mask, w, token_dim=2)
    check_state(initial_state, w)
    check_bias(denominator_bias, w, initial_state, key_padding_mask)
    check_probability("dropout_p", dropout_p)
    check_bool("return_membership", return_membership)
    check_bool("return_state", return_state)
    y, membership, state = backends.causal_token_statistics(
        w, temperature, denominator_bias, initial_state, key_padding_mask, dropout_p, backend
    )
    if return_membership:
        return (y, membership, state) if return_state else (y, membership)
    return (y, state) if return_state else y


def variational_compression_rate(
    w: Tensor, membership: Tensor, *, scale: float = 1.0, backend: str = "auto"
) -> Tensor:
    """Compute the variational compression objective that token statistics decrease.

    The objective is 1/2 sum_h n_h / n sum_i log(1 + scale * m[h, i]). n_h is the sum of Pi[h] and n
    is the sum of all Pi. m[h, i] is the mean of w[h, :, i]^2 weighted by Pi[h].

    For `scale` = 1 and constant Pi, its gradient with respect to w is -1/n times the output of
    `token_statistics`. Let w = U_h^T z for orthonormal U_h that span group h. Then the objective is
    at least `compression_rate(z, Pi)`. Both are equal if the U_h are the eigenvectors of the second
    moments of the groups.

    Args:
        w: (B, H, N, D) projected tokens.
        membership: (B, H, N) probabilities from `token_statistics` that sum to 1 over H. Zeros
            exclude padded tokens.
        scale: factor d / epsilon^2 of the rate distortion, above 0.
        backend: "auto", "reference" or "eager".

    Returns:
        (B,) nats, in membership's dtype.

    Raises:
        InputError: wrong shape, dtype or device.

    Source: ToST, equation (4) with f(x) = log(1 + scale * x).

    Example:
        >>> import torch, rifflemix as rm
        >>> w = torch.ones(1, 2, 10, 4)
        >>> rate = rm.ops.variational_compression_rate(w, torch.full((1, 2, 10), 0.5))
        >>> round(rate.item(), 3)
        1.386
    """
    check_heads("w", w)
    check_groups(membership, w)
    check_positive("scale", scale)
    module = backends.FAMILY.pick(backend)
    return module.variational_compression_rate(w, membership, scale)


def compression_rate(
    z: Tensor, membership: Tensor, *, scale: float = 1.0, backend: str = "auto"
) -> Tensor:
    """Compute the compression term R^c(Z | Pi) of maximal coding rate reduction.

    R^c = 1/2 sum_h n_h / n log det(I + scale / n_h Z^T diag(Pi[h]) Z). It needs no basis. One group
    with all tokens (Pi = 1) gives the expansion term R(Z).

    Args:
        z: (B, N, C) tokens.
        membership: (B, H, N) probabilities that sum to 1 over H. Zeros exclude padded tokens.
        scale: factor d / epsilon^2 of the rate distortion, above 0.
        backend: "auto", "reference" or "eager".

    Returns:
        (B,) nats, in membership's dtype.

    Raises:
        InputError: wrong shape, dtype or device.

    Source: ToST, equation (1); Yu et al. 2020, "Learning Diverse and Discriminative
    Representations via the Principle of Maximal Coding Rate Reduction".

    Example:
        >>> import torch, rifflemix as rm
        >>> z = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
        >>> one_group = torch.ones(1, 1, 4)
        >>> two_groups = torch.tensor([[[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]])
        >>> [round(rm.ops.compression_rate(z, g).item(), 3) for g in (one_group, two_groups)]
        [0.405, 0.347]
    """
    check_whole("z", z)
    check_groups(membership, z)
    check_positive("scale", scale)
    return backends.FAMILY.pick(backend).compression_rate(z, membership, scale)
