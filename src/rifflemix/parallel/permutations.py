"""Sharded channel-wise permutations: each process permutes whole channels.

One all-to-all collects all tokens of a share of the channels, and a second one returns them.
Variants with a short reach exchange only boundary tokens with adjacent processes: the causal
variants, and CSP with short groups and shifts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rifflemix.compat import stable_order
from rifflemix.mixers.causal_csp import CausalCSP
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.padding import mix_valid_tokens
from rifflemix.mixers.permutation_mixer import PermutationMixer
from rifflemix.mixers.sliceformer import Sliceformer
from rifflemix.mixers.token_groups import GroupLayout, append_padding
from rifflemix.ops.permutation import SortSpec, backends
from rifflemix.ops.permutation.arguments import Permuted
from rifflemix.parallel.shards import ShardedMixer, Shards


class ShardedPermutation(ShardedMixer, PermutationMixer):
    """Value projection, permutation of the whole sequence, output projection."""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if self.windows is None:
            return super().mix(x, key_padding_mask)
        v, windows = self.value(x), self.windows
        before = last_valid_before(v, key_padding_mask, windows.depth, self.shards(x.shape[1]))

        def filtered(ordered: Tensor, _: Tensor | None) -> Tensor:
            reaching: Tensor = windows(torch.cat((before, ordered), 1))
            return reaching[:, windows.depth :]

        return self.proj(mix_valid_tokens(filtered, v, key_padding_mask))


class ShardedSliceformer(ShardedPermutation, Sliceformer):
    """Sliceformer: each process sorts its share of the channels."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """Sort the whole sequence; the index contains global positions."""
        shards = self.shards(v.shape[1])
        num_channels = v.shape[2]
        columns, mask = shards.to_channels(v), shards.gather_mask(mask)
        if self.variant == "max_exchange":
            y, index = backends.for_tokens(columns).max_exchange(columns, mask, with_index)
        else:
            descending = None
            if self.variant != "ascending":
                share = shards.shares(num_channels)[shards.rank]
                descending = self.descending[share.start : share.stop]
            spec = SortSpec(1, False, 1, descending)
            module = backends.for_sort(columns, spec, with_index)
            y, index = module.permute(columns, None, spec, mask, with_index)
        widths = [len(share) for share in shards.shares(num_channels)]
        back = None if index is None else shards.to_tokens(index, widths)
        return shards.to_tokens(y, widths), back


class ShardedCausalCSP(ShardedPermutation, CausalCSP):
    """Causal CSP: each process gets the tokens that its windows reach."""


class LocalGroups(NamedTuple):
    """Short groups of a sharded sequence, and the tokens that each process needs for them.

    Attributes:
        size: tokens per group; the last group may have fewer.
        back: backward shift of each channel in tokens; negative for a forward shift.
        groups: for each process, the positions of all groups that contain its tokens.
        reach: for each process, the positions, modulo N, of the tokens shifted into these groups.
    """

    size: int
    back: list[int]
    groups: list[range]
    reach: list[range]


def plan_local_groups(mixer: CSP, shards: Shards) -> LocalGroups | None:
    """Plan the exchange of boundary tokens for short groups and shifts.

    The exchange of whole channels sends nearly all tokens of a process twice. Returns None if this
    is not more, and in a compiled graph, because the shifts cannot be read there.
    """
    length = shards.length
    if torch.compiler.is_compiling():
        return None
    size, steps = mixer.size_and_steps(length)
    half = length // 2  # longer backward shifts are shorter forward shifts
    back = [(step + half) % length - half for step in steps]
    groups = []
    for start, here in zip(shards.starts(), shards.lengths, strict=True):
        stop = -(-(start + here) // size) * size
        groups.append(range(start // size * size, min(stop, length)))
    reach = [range(group.start - max(back), group.stop - min(back)) for group in groups]
    more = max(len(of) - here for of, here in zip(reach, shards.lengths, strict=True))
    processes = len(shards.lengths)
    if more * processes >= 2 * (processes - 1) * min(shards.lengths):
        return None
    return LocalGroups(size, back, groups, reach)


class ShardedCSP(ShardedPermutation, CSP):
    """CSP: each process permutes its share of the channels, or all channels of its groups.

    With order="reference", a share that starts inside a head also gets the head's reference
    channel.
    """

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """Shift and sort the whole sequence; the index contains global positions."""
        shards = self.shards(v.shape[1])
        local = plan_local_groups(self, shards) if mask is None else None
        if local is not None:
            return self._permute_locally(v, shards, local, with_index=with_index)
        shares = shards.shares(v.shape[2])
        columns = shards.to_channels(v, [self._with_reference(share) for share in shares])
        y, index = super().permute(columns, shards.gather_mask(mask), with_index=with_index)
        widths = [len(share) for share in shares]
        first = y.shape[2] - widths[shards.rank]
        back = None if index is None else shards.to_tokens(index[..., first:], widths)
        return shards.to_tokens(y[..., first:], widths), back

    def _permute_locally(
        self, v: Tensor, shards: Shards, local: LocalGroups, *, with_index: bool
    ) -> Permuted:
        """Run `permute` on all channels of this process's groups."""
        self.groups.check_full(shards.length)
        group, most = local.groups[shards.rank], max(local.back)
        positions = (torch.arange(reach.start, reach.stop) % shards.length for reach in local.reach)
        x = shards.exchange(v, list(positions))
        back = torch.tensor(local.back, device=v.device)
        if most > min(local.back):
            # Tokens that wrap around are outside of the groups.
            x, _ = backends.for_shift(x).circular_shift(x, back - most, None, False)
        x, mask = x[:, : len(group)], None
        if missing := -len(group) % local.size:
            x, mask = append_padding(x, mask, missing)
        spec = SortSpec(x.shape[1] // local.size, self.order == "reference", self.heads)
        module = backends.for_sort(x, spec, with_index)
        y, index = module.permute(x, None, spec, mask, with_index)
        first = shards.offset - group.start
        own = slice(first, first + shards.here)
        if index is not None:
            index = (index[:, own] + group.start - back) % shards.length
        return y[:, own], index

    def permute_groups(
        self, v: Tensor, mask: Tensor | None, layout: GroupLayout, with_index: bool
    ) -> Permuted:
        """Permute this process's channels `v`."""
        share = self.sequence.shards(1 + self.sequence.extra).shares(self.inner_dim)[
            self.sequence.rank
        ]
        channels = torch.tensor(self._with_reference(share), dtype=torch.int64, device=v.device)
        steps = self.steps if self.steps is not None else self.scheduled_steps(layout, v.device)
        steps = None if steps is None else steps[channels]
        parts = []
        for part, heads in self._runs_of_heads(share):
            spec = SortSpec(layout.groups, self.order == "reference", heads)
            x = v[..., part]
            own = None if steps is None else steps[part]
            module = backends.for_sort(x, spec, with_index)
            parts.append(module.permute(x, own, spec, mask, with_index))
        if not parts:
            return v, v.long() if with_index else None
        values, indices = zip(*parts, strict=True)
        return torch.cat(values, 2), torch.cat(indices, 2) if with_index else None

    def _with_reference(self, share: range) -> list[int]:
        """Return the channels of a share, after their reference channel if necessary."""
        width = self.inner_dim // self.heads
        if self.order != "reference" or not share or share.start % width == 0:
            return list(share)
        return [share.start // width * width, *share]

    def _runs_of_heads(self, share: range) -> list[tuple[slice, int]]:
        """Return slices of `_with_reference(share)`: part of a head, or whole heads."""
        places = self._with_reference(share)
        if self.order != "reference":
            return [(slice(0, len(places)), 1)] if places else []
        width = self.inner_dim // self.heads
        ends, runs, start = self._ends_of_runs(share, width), [], 0
        for end in ends:
            stop = end - share.stop + len(places)
            runs.append((slice(start, stop), max(1, (stop - start) // width)))
            start = stop
        return runs

    def _ends_of_runs(self, share: range, width: int) -> list[int]:
        """Return the ends of the first head, last whole head and share."""
        first_end = min(-(-share.start // width) * width, share.stop)
        last_start = max(share.stop // width * width, first_end)
        return sorted({first_end, last_start, share.stop} - {share.start})


def last_valid_before(v: Tensor, mask: Tensor | None, count: int, shards: Shards) -> Tensor:
    """Return the last `count` valid tokens from earlier processes, per sequence.

    Missing tokens are zeros. Without padding and for `count` up to n, only the previous process
    sends tokens.

    Args:
        v: (B, n, C) tokens of this process.
        mask: (B, n) bool, True = padding.
        count: number of tokens.
        shards: shards of the sequence.

    Returns:
        (B, count, C).
    """
    whole = shards.gather_mask(mask)
    if whole is None:
        return shards.exchange(v, [range(start - count, start) for start in shards.starts()])
    # Join all sequences into one, because each needs tokens at different positions.
    order = stable_order(whole.to(torch.uint8), 1)
    valid = (~whole).cumsum(1)
    starts = torch.tensor(shards.starts(), device=v.device)
    lengths = torch.tensor(shards.lengths, device=v.device)
    wanted = []
    for start in shards.starts():
        found = valid[:, start - 1 : start] if start else torch.zeros_like(valid[:, :1])
        ranks = found - count + torch.arange(count, device=v.device)
        place = order.gather(1, ranks.clamp(min=0))
        holder = torch.bucketize(place, starts, right=True) - 1
        within = torch.arange(len(v), device=v.device)[:, None] * lengths[holder]
        row = len(v) * starts[holder] + within + place - starts[holder]
        wanted.append(row.masked_fill(ranks < 0, -1).flatten().cpu())
    rows = Shards(shards.group, shards.rank, tuple(len(v) * n for n in shards.lengths))
    last = rows.exchange(v.flatten(0, 1).unsqueeze(0), wanted)
    return last.view(len(v), count, v.shape[2])
