"""Sharded mixers: attention, groups and sums over tokens. `permutations` has the permutations.

- Softmax, a baseline: queries of this process, keys of all processes.
- Strided groups: each process mixes whole groups. For any stride, one all-to-all collects the
  tokens of the groups and a second all-to-all returns them.
- Sinkhorn: each process computes a share of the heads. Blocks are sorted by the sums of their
  tokens, added up over all processes. An all-to-all sends queries, keys and values of all tokens to
  the process of each head. A second all-to-all returns the outputs.
- Token statistics, linear attention and averages: processes add up their sums.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import stable_order
from rifflemix.mixers.baselines.average import AveragePooling
from rifflemix.mixers.baselines.identity import Identity
from rifflemix.mixers.baselines.linear import LinearAttention
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.grouped import Grouped
from rifflemix.mixers.padding import move_padding_back, move_padding_last
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.mixers.strided import StridedGroups
from rifflemix.mixers.token_groups import fill_groups, first_columns, missing_tokens
from rifflemix.mixers.tssa import TSSA
from rifflemix.ops.butterfly import butterfly_split
from rifflemix.ops.dropout.backends import dropout, dropout_attention
from rifflemix.ops.precision import sum_of_products, without_autocast
from rifflemix.ops.statistics import StatisticsState, backends, eager
from rifflemix.ops.statistics.common import accumulation_dtype
from rifflemix.parallel.shards import ShardedAttention, ShardedMixer, Shards


class ShardedSoftmax(ShardedAttention, SoftmaxAttention):
    """Softmax attention: every process gathers the keys and values of all tokens.

    The all-gather variant of torch's context parallelism does the same, but needs GPU kernels.
    """

    def cannot_shard(self) -> str:
        """Report `rotary`: positions of shards are not implemented."""
        return "rotary=True" if self.rotary else ShardedAttention.cannot_shard(self)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        shards = self.shards(q.shape[2])
        keys, values = shards.gather(torch.cat((k, v), -1), 2).chunk(2, -1)
        sees = _sees(shards.gather_mask(key_padding_mask), self.causal, shards, q.device)
        return dropout_attention(q, keys, values, mask=sees, dropout_p=self.dropout_now)


def _sees(
    padded: Tensor | None, causal: bool, shards: Shards, device: torch.device
) -> Tensor | None:
    """Return the mask, (B or 1, 1, n or 1, N) bool, or None.

    A query without any valid key attends to itself if causal, else to all keys. Only padded
    queries can have no valid key.
    """
    valid = None if padded is None else ~padded[:, None, None]
    if not causal:
        return None if valid is None else valid | ~valid.any(-1, keepdim=True)
    keys = torch.arange(shards.length, device=device)
    queries = keys[shards.offset :][: shards.here, None]
    earlier = (keys <= queries)[None, None]
    return earlier if valid is None else (valid & earlier) | (keys == queries)


class ShardedGroups(ShardedMixer, StridedGroups):
    """Each process mixes its share of the groups. Shares differ by one group at most."""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        shards = self.shards(x.shape[1])
        block, stride = self.groups(shards.length)
        missing = missing_tokens(block * stride, shards.length)
        positions = torch.arange(shards.length + missing).unsqueeze(0)
        groups = butterfly_split(positions, block, stride)[0]
        wanted = [
            groups[share.start : share.stop].flatten() for share in shards.shares(len(groups))
        ]
        by_group = (len(x) * len(wanted[shards.rank]) // block, block)
        tokens = shards.exchange(x, wanted).reshape(*by_group, self.dim)
        padded = _padded(x, key_padding_mask, wanted, shards)
        if padded is not None:
            padded = padded.reshape(by_group)
            # As without shards: a fully padded group is not masked, and its tokens are zeros.
            padded = padded & ~padded.all(dim=1, keepdim=True)
        y = self.mix_group(tokens, key_padding_mask=padded)
        y = y.reshape(len(x), len(wanted[shards.rank]), self.dim)
        places = groups.flatten().argsort()[: shards.length]
        grouped = Shards(shards.group, shards.rank, tuple(map(len, wanted)))
        return grouped.exchange(y, places.split(list(shards.lengths)))


class ShardedButterfly(ShardedGroups, Butterfly):
    """Butterfly attention: each process attends in its share of the groups."""

    def cannot_shard(self) -> str:
        """Report token_order='random': it needs a table of all tokens on every process."""
        return "" if self.token_rank is None else "token_order='random'"


class ShardedGrouped(ShardedGroups, Grouped):
    """Grouped mixing: each process mixes its share of the groups."""


def _padded(x: Tensor, mask: Tensor | None, wanted: list[Tensor], shards: Shards) -> Tensor | None:
    """Mark wanted positions that are padding or after the last token.

    Returns a (B, positions) bool tensor, or None if there are no such positions.
    """
    if mask is not None:
        return shards.exchange((~mask).to(torch.uint8), wanted) == 0
    if sum(map(len, wanted)) == shards.length:
        return None
    behind = wanted[shards.rank] >= shards.length
    return behind.to(x.device).expand(len(x), -1)


class ShardedSinkhorn(ShardedMixer, Sinkhorn):
    """Sparse Sinkhorn attention: each process sorts and attends in its share of the heads."""

    def cannot_shard(self) -> str:
        """Report settings that need more than the sums of blocks."""
        if self.options.rotate_heads:
            return "rotate_heads=True"
        if self.sorter.net is None:
            return "sort_net='attention'"
        return "sortcut with top_k" if self.sorter.shared else ""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        shards = self.shards(x.shape[1])
        mask = shards.gather_mask(key_padding_mask)
        shares = shards.shares(self.num_heads)
        heads = slice(shares[shards.rank].start, shares[shards.rank].stop)
        columns = shards.to_channels(self.qkv(x), [self._channels(share) for share in shares])
        order = None
        padded = mask
        if padded is not None:
            columns, padded, order = move_padding_last(columns, padded)
        hidden = None if self.causal else padded
        blocks, hidden = fill_groups(columns, hidden, self.block_size, masked=not self.causal)
        sort = self._sort(x, mask, hidden, blocks.shape[1] // self.block_size, shards)[:, heads]
        y = self._attend_share(blocks, sort, hidden, heads)[:, : shards.length]
        y = move_padding_back(y, order)
        width = self.dim // self.num_heads
        return self.proj(shards.to_tokens(y, [width * len(share) for share in shares]))

    def _channels(self, share: range) -> list[int]:
        """Return the output channels of the QKV projection for some heads."""
        width, parts = self.dim // self.num_heads, 2 if self.tie_kv else 3
        own = range(share.start * width, share.stop * width)
        return [part * self.dim + channel for part in range(parts) for channel in own]

    def _attend_share(
        self, blocks: Tensor, sort: Tensor, hidden: Tensor | None, heads: slice
    ) -> Tensor:
        """Attend in some heads; `blocks` contains queries, keys and values (B, N, c)."""
        count = heads.stop - heads.start
        if not count:
            # No heads here, but the parameters need gradients as on other processes.
            null_kv = (self.null_key, self.null_value) if self.options.null_kv else ()
            return blocks + sum((part[heads].sum() for part in null_kv), sort.sum())
        split = blocks.unflatten(2, (-1, count, self.dim // self.num_heads))
        parts = split.permute(2, 0, 3, 1, 4).unbind(0)
        y = self.attend_blocks(parts[0], parts[1], parts[-1], sort, hidden, heads)
        return y.transpose(1, 2).flatten(2)

    def _sort(
        self, x: Tensor, mask: Tensor | None, hidden: Tensor | None, num_blocks: int, shards: Shards
    ) -> Tensor:
        """Compute the sort matrix (B, H, R, n) of the whole sequence."""
        net = self.sorter.net
        if net is None:
            raise AssertionError("refused by cannot_shard")
        pooled = self._pooled(x, mask, num_blocks, shards)
        scores = first_columns(net(pooled), self.sorter.scored_null + num_blocks)
        return self.sorter.sort_matrix(scores, hidden)

    def _pooled(self, x: Tensor, mask: Tensor | None, num_blocks: int, shards: Shards) -> Tensor:
        """Pool the blocks of the whole sequence, valid tokens first: (B, n, C).

        Same result as `rifflemix.ops.pool_blocks`.
        """
        if mask is None:
            slots = torch.arange(shards.length, device=x.device).expand(len(x), -1)
        else:
            slots = stable_order(mask.to(torch.uint8), 1).argsort(1)
        slots = slots[:, shards.offset :][:, : shards.here]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        place = (slots // self.block_size).unsqueeze(-1).expand_as(wide)
        empty = wide.new_zeros(len(x), num_blocks, self.dim)
        totals = empty.scatter_add(1, place, wide)
        if not self.causal:
            return shards.total(totals).to(x.dtype)
        is_first = (slots % self.block_size == 0).unsqueeze(-1)
        first = empty.scatter_add(1, place, wide.masked_fill(~is_first, 0.0))
        totals, first = shards.total(torch.cat((totals, first), -1)).chunk(2, -1)
        return (F.pad(totals.cumsum(1), (0, 0, 1, 0))[:, :-1] + first).to(x.dtype)


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
        return self.out_proj(y.transpose(1, 2).flatten(2))

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
