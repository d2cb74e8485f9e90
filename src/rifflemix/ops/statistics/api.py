"""The public functions of this family: arguments checked, then handed to `unchecked`."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from rifflemix.checks import check_bool, check_padding_mask, check_positive, check_probability
from rifflemix.ops.statistics import unchecked
from rifflemix.ops.statistics.arguments import (
    check_bias,
    check_groups,
    check_heads,
    check_state,
    check_temperature,
    check_whole,
)
from rifflemix.ops.statistics.common import StatisticsState


@overload
def token_statistics(
    w: Tensor,
    temperature: Tensor,
    *,
    normalize: bool = True,
    key_padding_mask: Tensor | None = None,
    return_membership: Literal[False] = False,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor: ...


@overload
def token_statistics(
    w: Tensor,
    temperature: Tensor,
    *,
    normalize: bool = True,
    key_padding_mask: Tensor | None = None,
    return_membership: Literal[True],
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...


def token_statistics(
    w: Tensor,
    temperature: Tensor,
    *,
    normalize: bool = True,
    key_padding_mask: Tensor | None = None,
    return_membership: bool = False,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Token statistics self-attention between its two projections; O(N D) time and memory.

    Group h takes token n with probability Pi[h, n], a softmax over the heads of the token's
    share of the energy in that head's features. The output is minus each token's part in the
    group, feature by feature damped where the group's second moment m is large:
    y = -(w * Pi) / (1 + m). It is a descent step on `variational_compression_rate`.

    Args:
        w: (B, H, N, D) projected tokens.
        temperature: (H,) factor of each head's logit, of any floating-point dtype.
        normalize: scale each feature to unit norm over the tokens for Pi; False is the
            ablation of the paper's Table 8.
        key_padding_mask: (B, N) bool, True = padding; the result at valid positions is that of the
            valid tokens alone, and zero elsewhere.
        return_membership: also return Pi.
        dropout_p: probability of dropping an entry of the (B, H, 1, D) factor 1 / (1 + m); it
            drops whenever it is not 0, so pass 0 when not training.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        y (B, H, N, D) in w's dtype, or (y, Pi) with Pi (B, H, N) in float32, float64 for
        float64 tokens. Statistics are summed in that dtype too.

    Raises:
        InputError: a wrong shape, dtype, device or probability.

    Source: ToST, equations (10), (11), (31) and (32).
    """
    check_heads("w", w)
    check_temperature(temperature, w)
    check_padding_mask(key_padding_mask, w, token_dim=2)
    check_probability("dropout_p", dropout_p)
    check_bool("normalize", normalize)
    check_bool("return_membership", return_membership)
    y, membership = unchecked.token_statistics(
        w, temperature, normalize, key_padding_mask, dropout_p, backend
    )
    return (y, membership) if return_membership else y


@overload
def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None = None,
    *,
    initial_state: StatisticsState | None = None,
    return_state: Literal[False] = False,
    return_membership: Literal[False] = False,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor: ...


@overload
def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None = None,
    *,
    initial_state: StatisticsState | None = None,
    return_state: Literal[True],
    return_membership: Literal[False] = False,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> tuple[Tensor, StatisticsState]: ...


@overload
def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None = None,
    *,
    initial_state: StatisticsState | None = None,
    return_state: Literal[False] = False,
    return_membership: Literal[True],
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...


@overload
def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None = None,
    *,
    initial_state: StatisticsState | None = None,
    return_state: Literal[True],
    return_membership: Literal[True],
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, StatisticsState]: ...


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
) -> (
    Tensor
    | tuple[Tensor, StatisticsState]
    | tuple[Tensor, Tensor]
    | tuple[Tensor, Tensor, StatisticsState]
):
    """Token statistics where every sum runs over the tokens so far; constant memory per token.

    Pieces of a sequence give what the whole gives, when each starts from the state at the end
    of the piece before. Dropout aside, y[:, :, n] depends on w[:, :, :n + 1] alone.

    Args:
        w: (B, H, N, D) projected tokens.
        temperature: (H,) factor of each head's logit, of any floating-point dtype.
        denominator_bias: (H, L), a learned number per head and position, added to each of the D
            features' ratios before they are summed: D * temperature * bias on the logit. The
            position of a token is the number of valid tokens before it, padding not counted,
            so that padding moves nothing. L must cover all tokens, those in the state included.
        initial_state: what an earlier call returned, to go on from there; it must not be cast
            to a lower precision.
        return_state: also return the state after the last token.
        return_membership: also return Pi.
        key_padding_mask: (B, N) bool, True = padding; as if the valid tokens stood alone.
        dropout_p: probability of dropping an entry of the (B, H, N, D) factor 1 / (1 + m).
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        y (B, H, N, D) in w's dtype; with flags (y, Pi), (y, state) or (y, Pi, state), where Pi
        (B, H, N) and the sums in the state are float32, float64 for float64 tokens.

    Raises:
        InputError: a wrong shape, dtype, device or probability, or more tokens than
            `denominator_bias` has positions. (In a compiled graph the position in the state is
            not read, and going beyond the last position is an indexing error.)

    Source: ToST, equations (28), (29) and (34).
    """
    check_heads("w", w)
    check_temperature(temperature, w)
    check_padding_mask(key_padding_mask, w, token_dim=2)
    check_state(initial_state, w)
    check_bias(denominator_bias, w, initial_state, key_padding_mask)
    check_probability("dropout_p", dropout_p)
    check_bool("return_membership", return_membership)
    check_bool("return_state", return_state)
    y, membership, state = unchecked.causal_token_statistics(
        w, temperature, denominator_bias, initial_state, key_padding_mask, dropout_p, backend
    )
    if return_membership:
        return (y, membership, state) if return_state else (y, membership)
    return (y, state) if return_state else y


def variational_compression_rate(
    w: Tensor, membership: Tensor, *, scale: float = 1.0, backend: str = "auto"
) -> Tensor:
    """The variational compression objective: what a layer of token statistics lowers.

    1/2 sum_h n_h / n sum_i log(1 + scale * m[h, i]), where n_h is the sum of Pi[h], n that of
    all Pi, and m[h, i] the mean of w[h, :, i]^2 weighted by Pi[h]. With `scale` = 1 and Pi held
    fixed its gradient with respect to w is -1/n times the output of `token_statistics`. With
    w = U_h^T z for orthonormal U_h that span group h it is at least `compression_rate(z, Pi)`,
    and equal where the U_h are the eigenvectors of the groups' second moments.

    Args:
        w: (B, H, N, D) projected tokens.
        membership: (B, H, N) probabilities that sum to 1 over H, as `token_statistics` returns
            them; zero at padded tokens, which then do not count.
        scale: the factor d / epsilon^2 of the rate distortion, above 0.
        backend: "auto", "reference" or "eager".

    Returns:
        (B,) nats, in membership's dtype.

    Raises:
        InputError: a wrong shape, dtype or device.

    Source: ToST, equation (4) with f(x) = log(1 + scale * x).
    """
    check_heads("w", w)
    check_groups(membership, w)
    check_positive("scale", scale)
    return unchecked.variational_compression_rate(w, membership, scale, backend)


def compression_rate(
    z: Tensor, membership: Tensor, *, scale: float = 1.0, backend: str = "auto"
) -> Tensor:
    """The compression term of maximal coding rate reduction, R^c(Z | Pi): no basis is needed.

    1/2 sum_h n_h / n log det(I + scale / n_h Z^T diag(Pi[h]) Z). One group that holds all
    tokens, Pi = 1, gives the expansion term R(Z).

    Args:
        z: (B, N, C) tokens.
        membership: (B, H, N) probabilities that sum to 1 over H; zero at padded tokens, which
            then do not count.
        scale: the factor d / epsilon^2 of the rate distortion, above 0.
        backend: "auto", "reference" or "eager".

    Returns:
        (B,) nats, in membership's dtype.

    Raises:
        InputError: a wrong shape, dtype or device.

    Source: ToST, equation (1); Yu et al. 2020, "Learning Diverse and Discriminative
    Representations via the Principle of Maximal Coding Rate Reduction".
    """
    check_whole("z", z)
    check_groups(membership, z)
    check_positive("scale", scale)
    return unchecked.compression_rate(z, membership, scale, backend)
