"""Literal implementation of the equations: one sample, head and token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.ops.statistics.common import (
    COUNT_OFFSET,
    ENERGY_FLOOR,
    NORM_FLOOR,
    StatisticsState,
    accumulation_dtype,
    renewal_counts,
)


def token_statistics(
    w: Tensor,
    temperature: Tensor,
    *,
    normalize: bool,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run `rifflemix.ops.token_statistics`; return the output and the membership."""
    if not len(w):
        return w.clone(), _accumulated(w[..., 0])
    tokens, temperature = _accumulated(w), _accumulated(temperature)
    positions = _valid_positions(w, key_padding_mask)
    memberships, moments = [], []
    for sample, valid in zip(tokens, positions, strict=True):
        kept = sample[:, valid]
        pi = _sample_membership(kept, temperature, normalize)
        memberships.append(pi)
        moments.append(torch.stack([_moment(pi[h], kept[h]) for h in range(len(kept))]))
    gates = 1.0 / (1.0 + torch.stack(moments))
    ys, pis = [], []
    for sample, valid, pi, gate in zip(tokens, positions, memberships, gates, strict=True):
        y = -(sample[:, valid] * pi.unsqueeze(-1)) * gate.unsqueeze(1)
        ys.append(_put_back(y, valid, w.shape[2]))
        pis.append(_put_back(pi, valid, w.shape[2]))
    return torch.stack(ys).to(w.dtype), torch.stack(pis)


def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None,
    *,
    initial_state: StatisticsState | None,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor, StatisticsState]:
    """Run `rifflemix.ops.causal_token_statistics`; return output, membership and state."""
    if not len(w):
        state = initial_state or StatisticsState.zeros(0, w.shape[1], w.shape[3], device=w.device)
        return w.clone(), _accumulated(w[..., 0]), state
    tokens, temperature = _accumulated(w), _accumulated(temperature)
    batch, heads, length, features = w.shape
    state = initial_state or StatisticsState.zeros(batch, heads, features, device=w.device)
    ys, pis, ends = [], [], []
    for b, valid in enumerate(_valid_positions(w, key_padding_mask)):
        now = StatisticsState(*(field[b] for field in state))
        outputs, memberships = [], []
        for token in tokens[b].transpose(0, 1)[valid]:
            y, pi, now = _causal_token(token, temperature, denominator_bias, now)
            outputs.append(y)
            memberships.append(pi)
        empty = tokens[b][:, :0]
        y = torch.stack(outputs, 1) if outputs else empty
        pi = torch.stack(memberships, 1) if memberships else empty[..., 0]
        ys.append(_put_back(y, valid, length))
        pis.append(_put_back(pi, valid, length))
        ends.append(now)
    end = StatisticsState(*(torch.stack(fields) for fields in zip(*ends, strict=True)))
    return torch.stack(ys).to(w.dtype), torch.stack(pis).to(tokens.dtype), end


def renormalized_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None,
    *,
    every: int | str,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run `backends.renormalized_token_statistics`; return the output and the membership."""
    tokens, temperature = _accumulated(w), _accumulated(temperature)
    y, membership = torch.zeros_like(tokens), torch.zeros_like(tokens[..., 0])
    renewals = [0, *renewal_counts(every, w.shape[2])]
    for b, valid in enumerate(_valid_positions(w, key_padding_mask)):
        sample = tokens[b][:, valid]
        for n, place in enumerate(valid.tolist()):
            renewed = max(count for count in renewals if count <= n + 1)
            pi = torch.stack(
                [
                    _prefix_membership(
                        sample, i, max(renewed, i + 1), temperature, denominator_bias
                    )
                    for i in range(n + 1)
                ],
                dim=1,
            )
            moment = torch.stack([_moment(pi[h], sample[h, : n + 1]) for h in range(len(pi))])
            y[b, :, place] = -(sample[:, n] * pi[:, n, None]) / (1.0 + moment)
            membership[b, :, place] = pi[:, n]
    return y.to(w.dtype), membership


def variational_compression_rate(w: Tensor, membership: Tensor, scale: float) -> Tensor:
    """Run `rifflemix.ops.variational_compression_rate`."""
    rates = []
    for sample, pi in zip(_accumulated(w), membership, strict=True):
        total = sum(pi[h].sum() + COUNT_OFFSET for h in range(len(pi)))
        rate = torch.zeros((), dtype=sample.dtype, device=w.device)
        for h in range(len(pi)):
            count = pi[h].sum() + COUNT_OFFSET
            second_moment = sample[h].T @ torch.diag(pi[h]) @ sample[h] / count
            for entry in second_moment.diagonal():
                rate = rate + 0.5 * count / total * torch.log1p(scale * entry)
        rates.append(rate)
    return torch.stack(rates)


def compression_rate(z: Tensor, membership: Tensor, scale: float) -> Tensor:
    """Run `rifflemix.ops.compression_rate`."""
    rates = []
    for sample, pi in zip(_accumulated(z), membership, strict=True):
        total = sum(pi[h].sum() + COUNT_OFFSET for h in range(len(pi)))
        rate = torch.zeros((), dtype=sample.dtype, device=z.device)
        for h in range(len(pi)):
            count = pi[h].sum() + COUNT_OFFSET
            second_moment = sample.T @ torch.diag(pi[h]) @ sample / count
            identity = torch.eye(len(second_moment), dtype=sample.dtype, device=z.device)
            rate = rate + 0.5 * count / total * torch.logdet(identity + scale * second_moment)
        rates.append(rate)
    return torch.stack(rates)


def _sample_membership(kept: Tensor, temperature: Tensor, normalize: bool) -> Tensor:
    """Compute the membership (H, N) of the valid tokens (H, N, D) of one sample."""
    logits = []
    for h in range(len(kept)):
        scored = kept[h]
        if normalize:
            norm = torch.linalg.vector_norm(kept[h], dim=0)
            scored = kept[h] / torch.clamp(norm, min=NORM_FLOOR)
        logits.append(temperature[h] * (scored**2).sum(-1))
    return torch.softmax(torch.stack(logits), dim=0)


def _moment(pi: Tensor, kept: Tensor) -> Tensor:
    """Compute the mean square (D,) of tokens (N, D), weighted by membership."""
    total = torch.zeros_like(kept[:0].sum(0))
    for n in range(len(kept)):
        total = total + pi[n] * kept[n] ** 2
    return total / (pi.sum() + COUNT_OFFSET)


def _causal_token(
    token: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None,
    before: StatisticsState,
) -> tuple[Tensor, Tensor, StatisticsState]:
    """Compute output, membership and sums for one token (H, D)."""
    position = int(before.position)
    energy = before.energy + token**2
    logits = []
    for h in range(len(token)):
        ratio = token[h] ** 2 / torch.clamp(energy[h], min=ENERGY_FLOOR)
        if denominator_bias is not None:
            ratio = ratio + denominator_bias[h, position]
        logits.append(temperature[h] * ratio.sum())
    pi = torch.softmax(torch.stack(logits), dim=0)
    member_energy = before.member_energy + pi.unsqueeze(-1) * token**2
    member_count = before.member_count + pi
    moment = member_energy / (member_count.unsqueeze(-1) + COUNT_OFFSET)
    y = -(token * pi.unsqueeze(-1)) * (1.0 / (1.0 + moment))
    return y, pi, StatisticsState(energy, member_energy, member_count, before.position + 1)


def _prefix_membership(
    sample: Tensor, token: int, count: int, temperature: Tensor, denominator_bias: Tensor | None
) -> Tensor:
    """Compute the membership (H,) of one token.

    The features are scaled by the energy of the first `count` tokens.
    """
    logits = []
    for h in range(len(sample)):
        energy = torch.clamp((sample[h, :count] ** 2).sum(0), min=ENERGY_FLOOR)
        ratio = sample[h, token] ** 2 / energy
        if denominator_bias is not None:
            ratio = ratio + denominator_bias[h, token]
        logits.append(temperature[h] * ratio.sum())
    return torch.softmax(torch.stack(logits), dim=0)


def _accumulated(x: Tensor) -> Tensor:
    return x.to(accumulation_dtype(x.dtype))


def _valid_positions(w: Tensor, key_padding_mask: Tensor | None) -> list[Tensor]:
    """List the indices of the valid tokens of each sample."""
    if key_padding_mask is None:
        return [torch.arange(w.shape[2], device=w.device)] * w.shape[0]
    return [torch.nonzero(~padded).squeeze(-1) for padded in key_padding_mask]


def _put_back(values: Tensor, valid: Tensor, length: int) -> Tensor:
    """Scatter (H, valid, ...) -> (H, length, ...) with zeros at padded positions."""
    out = values.new_zeros(values.shape[0], length, *values.shape[2:])
    return out.index_copy(1, valid, values)
