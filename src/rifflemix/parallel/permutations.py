"""Channel-wise permutations of a sequence in shards: whole channels go to one process each.

One all-to-all brings all tokens of a share of the channels together, one brings them back. What
reaches a few tokens only asks the processes beside for these: the causal forms, and CSP in short
groups with short shifts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rifflemix.compat import stable_order
from rifflemix.mixers.csp import CSP, filled
from rifflemix.mixers.padding import mix_valid_tokens
from rifflemix.mixers.sliceformer import Sliceformer
from rifflemix.mixers.value_maps import PermutedValues
from rifflemix.ops.permutation import SortSpec, unchecked
from rifflemix.ops.permutation.spec import Permuted
from rifflemix.parallel.sharded import ShardedMixer
from rifflemix.parallel.shards import Shards


class ShardedPermutation(ShardedMixer, PermutedValues):
    """Value map, permutation of the whole sequence, output map."""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """See `PermutedValues.mix`."""
        if self.windows is None:
            return super().mix(x, key_padding_mask)
        v, windows = self.value(x), self.windows
        before = last_valid_before(v, key_padding_mask, windows.depth, self.shards(x.shape[1]))

        def filtered(ordered: Tensor, _: Tensor | None) -> Tensor:
            reaching: Tensor = windows(torch.cat((before, ordered), 1))
            return reaching[:, windows.depth :]

        y: Tensor = self.proj(mix_valid_tokens(filtered, v, key_padding_mask))
        return y


class ShardedSliceformer(ShardedPermutation, Sliceformer):
    """Sliceformer: every process sorts its share of the channels."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """See `Sliceformer.permute`; the index holds positions in the whole sequence."""
        shards = self.shards(v.shape[1])
        num_channels = v.shape[2]
        columns, mask = shards.to_channels(v), shards.gather_mask(mask)
        if self.variant == "max_exchange":
            y, index = unchecked.max_exchange(columns, mask, with_index)
        else:
            descending = None
            if self.variant != "ascending":
                share = shards.shares(num_channels)[shards.rank]
                descending = self.descending[share.start : share.stop]
            spec = SortSpec(1, False, 1, descending)
            y, index = unchecked.group_sort(columns, spec, mask, with_index)
        widths = [len(share) for share in shards.shares(num_channels)]
        back = None if index is None else shards.to_tokens(index, widths)
        return shards.to_tokens(y, widths), back


class Near(NamedTuple):
    """Short groups of a sequence in shards, and the tokens that they are made of.

    Attributes:
        size: tokens of a group; the last of all may have fewer.
        back: how many steps back each channel of a token comes from, or, below 0, ahead.
        groups: the tokens of all groups that hold tokens of a process, for each.
        reach: the tokens, modulo N, that these are made of.
    """

    size: int
    back: list[int]
    groups: list[range]
    reach: list[range]


def near_groups(mixer: CSP, shards: Shards) -> Near | None:
    """How each process makes its own groups, where groups and shifts are short.

    None where that is not less to send than whole channels, of which a process sends nearly all
    of its tokens twice, and in a traced graph, which cannot read the steps.
    """
    length = shards.length
    if torch.compiler.is_compiling():
        return None
    size, steps = mixer.size_and_steps(length)
    half = length // 2  # more than that back is less ahead
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
    return Near(size, back, groups, reach)


class ShardedCSP(ShardedPermutation, CSP):
    """CSP: every process permutes its share of the channels, or all of its groups.

    In reference order, the reference channel of a head in whose midst a share starts comes along.
    """

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """See `CSP.permute`; the index holds positions in the whole sequence."""
        shards = self.shards(v.shape[1])
        near = near_groups(self, shards) if mask is None else None
        if near is not None:
            return self._permute_near(v, shards, near, with_index=with_index)
        shares = shards.shares(v.shape[2])
        columns = shards.to_channels(v, [self._with_reference(share) for share in shares])
        y, index = super().permute(columns, shards.gather_mask(mask), with_index=with_index)
        widths = [len(share) for share in shares]
        first = y.shape[2] - widths[shards.rank]
        back = None if index is None else shards.to_tokens(index[..., first:], widths)
        return shards.to_tokens(y[..., first:], widths), back

    def _permute_near(self, v: Tensor, shards: Shards, near: Near, *, with_index: bool) -> Permuted:
        """`permute`, all channels of the own groups by each process."""
        if not self.pad:
            self._check_groups_fill(shards.length)
        group, most = near.groups[shards.rank], max(near.back)
        positions = (torch.arange(reach.start, reach.stop) % shards.length for reach in near.reach)
        x = shards.exchange(v, list(positions))
        back = torch.tensor(near.back, device=v.device)
        if most > min(near.back):
            # What goes round is not among the groups.
            x, _ = unchecked.circular_shift(x, back - most)
        x, mask = x[:, : len(group)], None
        if missing := -len(group) % near.size:
            x, mask = filled(x, mask, missing)
        spec = SortSpec(x.shape[1] // near.size, self.order == "reference", self.heads)
        y, index = unchecked.group_sort(x, spec, mask, with_index)
        first = shards.offset - group.start
        own = slice(first, first + shards.here)
        if index is not None:
            index = (index[:, own] + group.start - back) % shards.length
        return y[:, own], index

    def permute_groups(
        self, v: Tensor, steps: Tensor | None, groups: int, mask: Tensor | None, with_index: bool
    ) -> Permuted:
        """See `CSP.permute_groups`; `v` has this process's channels, `steps` are of all."""
        share = self.sequence.shards(1 + self.sequence.extra).shares(self.inner_dim)[
            self.sequence.rank
        ]
        channels = torch.tensor(self._with_reference(share), dtype=torch.int64, device=v.device)
        steps = None if steps is None else steps[channels]
        parts = []
        for part, heads in self._runs_of_heads(share):
            spec = SortSpec(groups, self.order == "reference", heads)
            x = v[..., part]
            if steps is None:
                parts.append(unchecked.group_sort(x, spec, mask, with_index))
            else:
                parts.append(unchecked.channel_permute(x, steps[part], spec, mask, with_index))
        if not parts:
            return v, v.long() if with_index else None
        values, indices = zip(*parts, strict=True)
        return torch.cat(values, 2), torch.cat(indices, 2) if with_index else None

    def _with_reference(self, share: range) -> list[int]:
        """The channels of a share, with the reference channel that they need in front."""
        width = self.inner_dim // self.heads
        if self.order != "reference" or not share or share.start % width == 0:
            return list(share)
        return [share.start // width * width, *share]

    def _runs_of_heads(self, share: range) -> list[tuple[slice, int]]:
        """Places in `_with_reference(share)` that hold a part of one head, or some whole ones."""
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
        """Channels at which the head that a share starts in ends, the last whole one, the share."""
        first_end = min(-(-share.start // width) * width, share.stop)
        last_start = max(share.stop // width * width, first_end)
        return sorted({first_end, last_start, share.stop} - {share.start})


def last_valid_before(v: Tensor, mask: Tensor | None, count: int, shards: Shards) -> Tensor:
    """The last `count` valid tokens of each sequence before this process's own, zeros before these.

    Without padding, and where `count` is at most n, only the process before is asked.

    Args:
        v: (B, n, C) this process's tokens.
        mask: (B, n) bool, True = padding.
        count: how many.
        shards: who holds which tokens.

    Returns:
        (B, count, C).
    """
    whole = shards.gather_mask(mask)
    if whole is None:
        return shards.exchange(v, [range(start - count, start) for start in shards.starts()])
    # Tokens of all sequences as the rows of one, which each want from other places.
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
