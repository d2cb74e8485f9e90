"""Sharded mixers based on sums over tokens: processes add up their sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rifflemix.mixers.baselines.average import AveragePooling
from rifflemix.mixers.baselines.identity import Identity
from rifflemix.mixers.baselines.linear import LinearAttention
from rifflemix.mixers.tssa import TSSA
from rifflemix.ops.dropout.backends import dropout
from rifflemix.ops.precision import sum_of_products, without_autocast
from rifflemix.ops.statistics import StatisticsState, backends, eager
from rifflemix.ops.statistics.common import accumulation_dtype
from rifflemix.parallel.shards import ShardedAttention, ShardedMixer, Shards


class ShardedIdentity(ShardedMixer, Identity):
    """Identity: tokens do not interact, so processes exchange no data."""


class ShardedTSSA(ShardedMixer, TSSA):
    """TSSA: exchanges two sums of at most H (D + 1) numbers.

    Sums are over all processes, or over earlier processes if causal. The bidirectional variant runs
    in plain torch. The causal variant runs twice: first for the membership sums that later
    processes need, then for the outputs.
    """

    def cannot_shard(self) -> str:
        """Report `renormalize_every`: it needs the tokens of all earlier processes."""
        every = self.renormalize_every
        return "" if every is None else f"renormalize_every={every!r}"

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        p = self.dropout_now
        y, _ = self._sharded_statistics(self.project(x), key_padding_mask, p)
        out: Tensor = self.out_proj(y.transpose(1, 2).flatten(2))
        return out

    def membership(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return the memberships of this process's tokens, see `TSSA.membership`."""
        self._check_input(x, key_padding_mask)
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        return self._sharded_statistics(self.project(x), key_padding_mask, 0.0)[1]

    def _sharded_statistics(
        self, w: Tensor, mask: Tensor | None, dropout_p: float
    ) -> tuple[Tensor, Tensor]:
        shards = self.shards(w.shape[2])
        if self.causal:
            return self._causal_statistics(w, mask, dropout_p, shards)
        y, membership = eager.token_statistics(
            w,
            self.temperature,
            normalize=self.normalize,
            key_padding_mask=mask,
            total=shards.total,
        )
        if dropout_p:
            # One gate for the tokens of all processes.
            ones = w.new_ones((*w.shape[:2], 1, w.shape[3]), dtype=membership.dtype)
            y = (y * shards.from_first(dropout(ones, dropout_p))).to(y.dtype)
        return y, membership

    def _causal_statistics(
        self, w: Tensor, mask: Tensor | None, dropout_p: float, shards: Shards
    ) -> tuple[Tensor, Tensor]:
        squares = w.to(accumulation_dtype(w.dtype)).square()
        if mask is not None:
            squares = squares.masked_fill(mask[:, None, :, None], 0.0)
        before = StatisticsState.zeros(len(w), w.shape[1], w.shape[3], device=w.device)
        before = before._replace(
            energy=shards.total_before(squares.sum(-2, dtype=before.energy.dtype)),
            position=valid_before(w, mask, shards),
        )

        def run(before: StatisticsState, p: float) -> tuple[Tensor, Tensor, StatisticsState]:
            return backends.causal_token_statistics(
                w, self.temperature, self.denominator_bias, before, mask, p
            )

        _, _, after = run(before, 0.0)
        sums = torch.cat((after.member_energy, after.member_count.unsqueeze(-1)), -1)
        sums = shards.total_before(sums)
        before = before._replace(member_energy=sums[..., :-1], member_count=sums[..., -1])
        return run(before, dropout_p)[:2]


class ShardedLinear(ShardedAttention, LinearAttention):
    """Linear attention: exchanges one sum of H D (D + 1) numbers.

    The sum is over all processes, or over earlier processes if causal.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Attend. One exchange contains the sums and, as last channel, their norm."""
        shards = self.shards(q.shape[2])
        q, k = self.features(q, k, key_padding_mask, None)
        wide = torch.promote_types(v.dtype, torch.float32)
        q, k, values = q.to(wide), k.to(wide), v.to(wide)
        with without_autocast(v):
            values = torch.cat((values, torch.ones_like(values[..., :1])), -1)
            sums = sum_of_products(k, values)
            if self.causal:
                y = self.weighted_sums(q, k, values) + q @ shards.total_before(sums)
            else:
                y = q @ shards.total(sums)
        if self.normalize:
            y = y[..., :-1] / (y[..., -1:] + self.epsilon)
        elif key_padding_mask is None:
            y = y[..., :-1] / math.sqrt(shards.length)
        else:
            count = shards.total((~key_padding_mask).sum(1).to(wide)).clamp_min(1)
            y = y[..., :-1] * count.rsqrt()[:, None, None, None]
        return y.to(v.dtype)


class ShardedAverage(ShardedMixer, AveragePooling):
    """Average pooling: exchanges one sum of C + 1 numbers.

    The sum is over all processes, or over earlier processes if causal.
    """

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Average, with tokens and their count in one exchange."""
        shards = self.shards(x.shape[1])
        tokens = x.to(accumulation_dtype(x.dtype))
        counted = torch.ones_like(tokens[..., :1])
        if key_padding_mask is not None:
            counted = counted.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        if self.causal:
            tokens = torch.cat((tokens, counted), -1)
            sums = tokens.cumsum(1) + shards.total_before(tokens.sum(1)).unsqueeze(1)
        else:
            sums = shards.total(torch.cat((tokens.sum(1), counted.sum(1)), -1)).unsqueeze(1)
        return (sums[..., :-1] / sums[..., -1:].clamp(min=1)).to(x.dtype).expand_as(x)


def valid_before(x: Tensor, mask: Tensor | None, shards: Shards) -> Tensor:
    """Count the valid tokens of each sequence on earlier processes, (B,) int64."""
    if mask is None:
        return torch.full((len(x),), shards.offset, device=x.device)
    return shards.total_before((~mask).sum(1))
