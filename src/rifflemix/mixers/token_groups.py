"""Groups of tokens in sequences of any length.

A mixer with groups of tokens computes them here: full groups for every length, layouts over
`max_length`, and lengths that are symbolic in a traced graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_divides
from rifflemix.compat import as_operand, is_known, statically_known_true, take_first
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.packed import Mix
from rifflemix.ops.permutation.arguments import Permuted

LAYOUTS = ("max_length", "length")
_TOKENS = "the number of tokens N"
_PAD_HINT = "use pad=True to let the last group be shorter"


def reference_length(layout: str | None, max_length: int | None) -> int | None:
    """Choose the length for which groups, shifts or strides are computed.

    Args:
        layout: "max_length": the result does not depend on the lengths of other samples in the
            batch. "length": the length of the input, padding included. Default: "max_length" if
            `max_length` is set, else "length".
        max_length: maximum number of tokens of the mixer, or None.

    Returns:
        `max_length`, or None for the length of the input.

    Raises:
        InputError: the layout is unknown, or is "max_length" although `max_length` is None.
    """
    if layout is None:
        return max_length
    check_choice("layout", layout, LAYOUTS)
    if layout == "length":
        return None
    if max_length is None:
        raise bad_argument("max_length", 'a maximum number of tokens for layout="max_length"', None)
    return max_length


def default_group_size(length: int) -> int:
    """Compute 2^ceil(log2(sqrt(length))) exactly: 8, 16, 32 for 64, 256, 1024."""
    return 1 << ((length - 1).bit_length() + 1) // 2


def is_single_group(size: int, length: int) -> bool:
    """Check that a group of `size` tokens contains all tokens, for all symbolic lengths."""
    return statically_known_true(length <= size)


def group_size(size: int, length: int) -> int:
    """Return the tokens per group: `size`, or `length` if that is less.

    A symbolic length in a traced graph is not compared with `size`; padding fills the group.
    """
    return length if is_single_group(size, length) else size


def full_groups(size: int, length: int) -> tuple[int, int]:
    """Return the number of groups and the tokens per group.

    A symbolic length in a traced graph gets one extra group of padding. With at least two groups,
    compilers make no separate graph and no guard for a single group.
    """
    if is_known(length):
        size = min(size, length)
        return (length + size - 1) // size, size
    if is_single_group(size, length):
        return 1, length
    # The maximum does not change the value. It proves to compilers that there are two groups.
    count: int = torch.sym_max(2, (length + 2 * size - 1) // size)
    return count, size


def missing_tokens(size: int, length: int) -> int:
    """Return the number of padded tokens that fill the groups of `full_groups`."""
    if is_known(length):
        return -length % size
    if not is_known(size):  # a single group with all tokens
        return 0
    # As `full_groups`, but compilers cannot divide a maximum by the number of groups.
    return (length + 2 * size - 1) // size * size - length


def append_padding(
    x: Tensor, mask: Tensor | None, missing: int, *, masked: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Append `missing` padded tokens to (B, N, C), and to the mask (B, N) if `masked`."""
    if masked:
        mask = x.new_zeros(x.shape[:2], dtype=torch.bool) if mask is None else mask
        mask = F.pad(mask, (0, missing), value=True)
    return F.pad(x, (0, 0, 0, missing)), mask


def fill_groups(
    x: Tensor, mask: Tensor | None, size: int, *, masked: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Append padding until groups of `size` tokens are full; see `append_padding`."""
    missing = missing_tokens(size, x.shape[1])
    if statically_known_true(missing == 0):
        return x, mask
    return append_padding(x, mask, missing, masked=masked)


def mix_full_groups(
    mix: Mix, x: Tensor, mask: Tensor | None, size: int, *, masked: bool = True
) -> Tensor:
    """Run `mix(x, mask)` after `fill_groups`, and remove the padding from the outputs."""
    length = x.shape[1]
    if is_known(length) and length % size == 0:
        return mix(x, mask)
    filled, mask = fill_groups(x, mask, size, masked=masked)
    y = mix(filled, mask)
    return y if filled is x else take_first(y, length, 1)


def mix_in_order(
    mix: Mix, x: Tensor, mask: Tensor | None, ranks: Tensor, reference: int | None
) -> Tensor:
    """Run `mix(x, mask)` on tokens in another order.

    Args:
        mix: function of tokens (B, M, C) and their mask (B, M).
        x: (B, N, C) tokens.
        mask: (B, N) bool, True = padding, or None.
        ranks: (max_length,) position of each token in the new order.
        reference: M: every token is at its rank, and ranks without a token are padding. None: M
            is N, in the order of the ranks.

    Returns:
        (B, N, C) outputs in the order of `x`.
    """
    batch, length, dim = x.shape
    rank = take_first(ranks, length, 0)
    if reference is None or statically_known_true(length == reference):
        order = rank.argsort()
        mask = None if mask is None else mask[:, order]
        return mix(x[:, order], mask)[:, order.argsort()]
    spread = x.new_zeros(batch, reference, dim).index_copy(1, rank, x)
    mask = x.new_zeros(x.shape[:2], dtype=torch.bool) if mask is None else mask
    padded = mask.new_ones(batch, reference).index_copy(1, rank, mask)
    return mix(spread, padded).index_select(1, rank)


def split_groups(x: Tensor, size: int, dim: int, *, value: float = 0.0) -> Tensor:
    """Split axis `dim` into groups of `size` positions.

    The last group is filled with `value`. `dim` counts from the end if it is negative.
    """
    behind = -1 - dim if dim < 0 else x.dim() - 1 - dim
    padding = (0, 0) * behind + (0, missing_tokens(size, x.shape[dim]))
    return torch.unflatten(F.pad(x, padding, value=value), dim, (-1, size))


def join_groups(x: Tensor, length: int, dim: int) -> Tensor:
    """Join axes `dim` and `dim + 1` of `split_groups` to an axis of `length` positions."""
    return take_first(x.flatten(dim, dim + 1), length, dim)


def first_columns(table: Tensor, count: int) -> Tensor:
    """Return the first `count` entries of the last axis, one for each group.

    A symbolic length has one extra group of padding (`full_groups`). The table may have no entry
    for it, so it gets zeros.
    """
    if is_known(count):
        return table.narrow(-1, 0, count)
    return take_first(F.pad(table, (0, 1)), count, -1)


def fitted_stride(size: int, stride: int, length: int) -> tuple[int, int]:
    """Compute the tokens per group and the stride of strided groups for `length` tokens.

    Inputs shorter than size * stride get smaller and fewer groups, to avoid groups that contain
    padding only. A symbolic length in a traced graph is padded to a multiple of size * stride.
    """
    if not is_known(length) or length >= size * stride:
        return size, stride
    stride = min(stride, length)
    return -(-length // stride), stride


class GroupLayout(NamedTuple):
    """Contiguous groups that fill a sequence.

    Attributes:
        groups: number of groups.
        length: tokens that schedules divide, without padding that fills the last group.
        size: tokens per group in this length. A symbolic size is a 0-d tensor.
    """

    groups: int
    length: int
    size: int | Tensor


Permute = Callable[[Tensor, Tensor | None, GroupLayout, bool], Permuted]


@dataclass(frozen=True)
class TokenGroups:
    """Contiguous groups of equal size, for sequences of any length.

    Attributes:
        size: tokens per group; not used if `count` is set.
        count: number of groups into which the reference length is divided, or None.
        reference_length: length of the layout; None for the length of the input.
        pad: let the last group be shorter. False raises an error if groups are not full.
    """

    size: int
    count: int | None = None
    reference_length: int | None = None
    pad: bool = True

    def size_in(self, length: int) -> int:
        """Return the tokens per group if the groups divide `length` tokens."""
        return min(self.size, length) if self.count is None else -(-length // self.count)

    def check_full(self, length: int) -> None:
        """Raise InputError unless groups divide a sequence, if padding is not allowed."""
        whole = self.reference_length
        if self.pad:
            return
        if self.count is None:
            check_divides("group_size", self.size, length, _TOKENS, _PAD_HINT)
        elif whole is None:
            check_divides("num_groups", self.count, length, _TOKENS, _PAD_HINT)
        else:
            check_divides("num_groups", self.count, whole, "max_length", _PAD_HINT)
            size = self.size_in(whole)
            if size < whole:  # a single group fills a sequence of any length
                check_divides("max_length / num_groups", size, length, _TOKENS, _PAD_HINT)

    def run(self, permute: Permute, v: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
        """Run `permute(v, mask, layout, with_index)` on full groups, and remove the padding."""
        length = v.shape[1]
        if not self.pad:
            self.check_full(length)
        if not is_known(length):
            return self._run_symbolic(permute, v, mask, with_index)
        whole, count = self.reference_length or length, self.count
        # Inlined `size_in`: a function call would slow down small inputs.
        size = min(self.size, whole) if count is None else -(-whole // count)
        here = min(size, length)
        count = -(-length // here)
        layout = GroupLayout(count, whole, size)
        if count * here == length:
            return permute(v, mask, layout, with_index)
        v, mask = append_padding(v, mask, count * here - length)
        y, index = permute(v, mask, layout, with_index)
        return y[:, :length], None if index is None else index[:, :length]

    def _run_symbolic(
        self, permute: Permute, v: Tensor, mask: Tensor | None, with_index: bool
    ) -> Permuted:
        length, whole = v.shape[1], self.reference_length
        tokens = cast(Tensor, as_operand(length, v.device))  # a symbolic size becomes a tensor
        size, operand = self.size, cast("int | Tensor", tokens)  # tokens per group
        if whole is not None:
            operand = size = self.size_in(whole)
        elif self.count is None:
            operand = tokens.clamp(max=size)
        elif self.count > 1:
            return self._run_spread(permute, v, mask, with_index)
        count, size = (1, length) if self.count == 1 else full_groups(size, length)
        layout, missing = GroupLayout(count, whole or length, operand), count * size - length
        if statically_known_true(missing == 0):
            return permute(v, mask, layout, with_index)
        v, mask = append_padding(v, mask, missing)
        y, index = permute(v, mask, layout, with_index)
        return take_first(y, length, 1), None if index is None else take_first(index, length, 1)

    def _run_spread(
        self, permute: Permute, v: Tensor, mask: Tensor | None, with_index: bool
    ) -> Permuted:
        """Run `permute` for a symbolic length and a fixed number of groups.

        Each group gets one extra padded position. Otherwise a group could have a single token, a
        size for which compilers make a separate graph. Shift and sort ignore padding anywhere.
        """
        groups, length = cast(int, self.count), v.shape[1]
        places = (length - 1) // groups + 2  # as a sum: compilers can prove it is at least 2
        tokens, wider = as_operand(length, v.device), as_operand(places, v.device)
        here = wider - 1
        place = torch.arange(groups * places, device=v.device)
        token = place // wider * here + place % wider
        padded = (place % wider == here) | (token >= tokens)
        token = torch.minimum(token, cast(Tensor, tokens - 1))
        if mask is not None:
            padded = padded | mask.index_select(1, token)
        y, index = permute(
            v.index_select(1, token),
            padded.expand(v.shape[0], -1),
            GroupLayout(groups, length, here),
            with_index,
        )
        position = torch.arange(length, device=v.device)
        place = position // here * wider + position % here
        return y.index_select(1, place), None if index is None else token[index[:, place]]
