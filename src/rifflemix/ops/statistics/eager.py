"""Token statistics in plain torch: a few passes over the tokens, on any device.

Sums over tokens do not use matrix products, because autocast would run these in half precision.
Sums of thousands of squares need float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rifflemix.compat import as_constant, widest_float
from rifflemix.ops.precision import without_autocast
from rifflemix.ops.statistics.common import (
    COUNT_OFFSET,
    ENERGY_FLOOR,
    NORM_FLOOR,
    StatisticsState,
    accumulation_dtype,
    bias_per_token,
    end_position,
    renewal_counts,
)


def token_statistics(
    w: Tensor,
    temperature: Tensor,
    *,
    normalize: bool,
    key_padding_mask: Tensor | None,
    total: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run `rifflemix.ops.token_statistics`; return the output and the membership.

    If other processes have further tokens, `total` turns local sums into sums over all tokens.
    """
    tokens = _valid_tokens(w, key_padding_mask)
    squares = tokens.square()
    scores = squares
    if normalize:
        # Divide by the squared norm (and square the floor of the norm). A square root would have an
        # infinite gradient at a column of zeros.
        norms = squares.sum(-2, keepdim=True)
        scores = squares / (norms if total is None else total(norms)).clamp_min(NORM_FLOOR**2)
    membership = _membership(scores.sum(-1), temperature, key_padding_mask)
    weights = membership.unsqueeze(-1)
    member_energy = (weights * squares).sum(-2, keepdim=True)
    count = weights.sum(-2, keepdim=True)
    if total is not None:  # one call for both, because each call waits for other processes
        member_energy, count = total(torch.cat((member_energy, count), -1)).tensor_split([-1], -1)
    moment = member_energy / (count + COUNT_OFFSET)
    return _gated(tokens, weights, moment, key_padding_mask).to(w.dtype), membership


def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None,
    *,
    initial_state: StatisticsState | None,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor, StatisticsState]:
    """Run `rifflemix.ops.causal_token_statistics`; return output, membership and state."""
    bias = None
    if denominator_bias is not None:
        bias = bias_per_token(denominator_bias, w.shape[2], initial_state, key_padding_mask)
    before: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
    if initial_state is not None:  # torch 2.8 cannot trace a slice of the state
        energy, member_energy, member_count, _ = initial_state
        before = (energy, member_energy, member_count)
    y, membership, energy, member_energy, member_count = causal_from_sums(
        w, temperature, bias, *before, key_padding_mask
    )
    position = end_position(w, initial_state, key_padding_mask)
    return y, membership, StatisticsState(energy, member_energy, member_count, position)


def causal_from_sums(
    w: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    energy_before: Tensor | None,
    member_energy_before: Tensor | None,
    member_count_before: Tensor | None,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the causal variant from a bias and initial sums.

    `bias` is (B or 1, H, N). Bias and sums may be None. Returns the output, the membership and the
    three sums after the last token.
    """
    tokens = _valid_tokens(w, key_padding_mask)
    squares = tokens.square()
    energy, last_energy = _sums_so_far(squares, energy_before)
    scores = (squares / energy.clamp_min(ENERGY_FLOOR)).sum(-1)
    if bias is not None:
        # The bias is added to each of the D features before their sum, so D times in total.
        scores = scores + w.shape[3] * bias.to(scores.dtype)
    membership = _membership(scores, temperature, key_padding_mask)
    weights = membership.unsqueeze(-1)
    member_energy, last_member_energy = _sums_so_far(weights * squares, member_energy_before)
    count_before = None if member_count_before is None else member_count_before.unsqueeze(-1)
    member_count, last_count = _sums_so_far(weights, count_before)
    moment = member_energy / (member_count + COUNT_OFFSET)
    y = _gated(tokens, weights, moment, key_padding_mask).to(w.dtype)
    return y, membership, last_energy, last_member_energy, last_count.squeeze(-1)


def _sums_so_far(values: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute running sums of (B, H, N, D) over the tokens, starting from `before` (B, H, D).

    Returns:
        The running sums in the dtype of `values`, and the last sum in the dtype of a state.
    """
    sums = values.cumsum(-2)
    last = sums[:, :, -1].to(widest_float(values.device), copy=True)  # not a view of all sums
    if before is None:
        return sums, last
    return sums + before.to(sums.dtype).unsqueeze(-2), last + before


def renormalized_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None,
    *,
    every: int | str,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run `backends.renormalized_token_statistics`; return the output and the membership."""
    tokens = _valid_tokens(w, key_padding_mask)
    length = as_constant(w.shape[2])  # a traced graph fixes this length
    squares = tokens.square()
    energy = squares.cumsum(-2).clamp_min(ENERGY_FLOOR)
    offset = squares.new_zeros(w.shape[1], length)
    if denominator_bias is not None:
        offset = w.shape[3] * denominator_bias[:, :length].to(squares.dtype)
    membership = _membership((squares / energy).sum(-1) + offset, temperature, key_padding_mask)
    weights = membership.unsqueeze(-1)
    # The last column of `summed` is 1, so that the last sum is the count.
    summed = torch.cat((squares, torch.ones_like(squares[..., :1])), -1)
    sums = (weights * summed).cumsum(-2)
    counts = renewal_counts(every, length)
    changes = [torch.zeros_like(sums[:, :, :1])]
    # Batch the steps: within a batch, the numbers of tokens differ by less than a factor of 2.
    rounds: dict[int, list[int]] = {}
    for count in counts:
        rounds.setdefault((count - 1).bit_length(), []).append(count)
    for together in rounds.values():
        seen, last = slice(together[-1]), torch.tensor(together, device=w.device) - 1
        with without_autocast(w):
            scores = energy[:, :, last].reciprocal() @ squares[:, :, seen].mT
            logits = temperature.to(scores.dtype)[:, None, None] * (scores + offset[:, None, seen])
            is_later = torch.arange(together[-1], device=w.device) > last.unsqueeze(1)
            renewed = torch.softmax(logits, dim=1).masked_fill(is_later, 0.0)
            if key_padding_mask is not None:
                renewed = renewed.masked_fill(key_padding_mask[:, None, None, seen], 0.0)
            changes.append(renewed @ summed[:, :, seen] - sums[:, :, last])
    place = torch.arange(1, length + 1, device=w.device)
    latest = torch.bucketize(place, torch.tensor(counts, device=w.device), right=True)
    sums = sums + torch.cat(changes, 2)[:, :, latest]
    moment = sums[..., :-1] / (sums[..., -1:] + COUNT_OFFSET)
    return _gated(tokens, weights, moment, key_padding_mask).to(w.dtype), membership


def variational_compression_rate(w: Tensor, membership: Tensor, scale: float) -> Tensor:
    """Run `rifflemix.ops.variational_compression_rate`."""
    squares = w.to(membership.dtype).square()
    count = membership.sum(-1) + COUNT_OFFSET
    moment = (membership.unsqueeze(-1) * squares).sum(-2) / count.unsqueeze(-1)
    return _weighted_over_groups(count, torch.log1p(scale * moment).sum(-1))


def compression_rate(z: Tensor, membership: Tensor, scale: float) -> Tensor:
    """Run `rifflemix.ops.compression_rate`."""
    tokens = z.to(membership.dtype).unsqueeze(1)
    count = membership.sum(-1) + COUNT_OFFSET
    with without_autocast(z):
        weighted = membership.unsqueeze(-1) * tokens
        moment = weighted.mT @ tokens / count[..., None, None]
        identity = torch.eye(z.shape[2], dtype=tokens.dtype, device=z.device)
        rate = torch.linalg.slogdet(identity + scale * moment).logabsdet
    return _weighted_over_groups(count, rate)


def _weighted_over_groups(count: Tensor, rate: Tensor) -> Tensor:
    """Return half the mean rate of groups, weighted by counts.

    (B, H) -> (B,).
    """
    return 0.5 * (count * rate).sum(-1) / count.sum(-1)


def _valid_tokens(w: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Convert `w` to the accumulation dtype and set padding to zero."""
    tokens = w.to(accumulation_dtype(w.dtype))
    if key_padding_mask is None:
        return tokens
    return torch.where(key_padding_mask[:, None, :, None], 0.0, tokens)


def _membership(scores: Tensor, temperature: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Compute the softmax of scores (B, H, N) over the heads; padding becomes zero."""
    logits = temperature.to(scores.dtype).unsqueeze(-1) * scores
    membership = torch.softmax(logits, dim=1)
    if key_padding_mask is None:
        return membership
    return membership.masked_fill(key_padding_mask.unsqueeze(1), 0.0)


def _gated(
    tokens: Tensor, weights: Tensor, moment: Tensor, key_padding_mask: Tensor | None
) -> Tensor:
    """Compute the descent direction; `moment` is (B, H, 1 or N, D)."""
    y = (-weights * tokens) * (1.0 / (1.0 + moment))
    if key_padding_mask is None:
        return y
    # Padding is already zero, except if a NaN or infinity in a valid token makes the gate NaN.
    return torch.where(key_padding_mask[:, None, :, None], 0.0, y)
