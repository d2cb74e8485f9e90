"""Base class for mixers within the strided groups of a butterfly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.compat import as_constant, constant_for_compiler, is_known, take_first
from rifflemix.errors import bad_argument
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.padding import layout_length, missing_tokens
from rifflemix.ops.butterfly import butterfly_layout, unchecked


class StridedGroups(TokenMixer):
    """Mix the tokens of each strided group. Subclasses implement `mix_group`.

    The positions of a group are one stride apart, and `layer_index` selects the stride. Every token
    reaches every other token after `len(strides(N))` layers. If groups do not fill the sequence,
    the mixer adds masked padding. It also adds strides if this padding would disconnect tokens.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        block_size: tokens a per group, at least 2. Default: the smallest power of two that is at
            least sqrt(S), with S = `max_length` if set, else the length of the input. An input
            shorter than a block is one group.
        layout: length for which the strides are chosen. "max_length" (the default if `max_length`
            is set): the result does not depend on the lengths of other samples. Inputs shorter
            than `max_length` may need a second pass through the strides to connect all tokens.
            "length": the length of the input, padding included, as in the paper.
        reverse: use the strides from the largest to 1.
        shared: other arguments of `TokenMixer`.
    """

    def __init__(
        self,
        dim: int,
        *,
        block_size: int | None = None,
        layout: str | None = None,
        reverse: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        if block_size is not None:
            block_size = check_integer("block_size", block_size, 2)
        elif self.max_length is not None:
            block_size = default_block_size(self.max_length)
        self.block_size = block_size
        self.layout_length = layout_length(layout, self.max_length)
        self.reverse = reverse

    def mix_group(self, groups: Tensor, *, key_padding_mask: Tensor | None) -> Tensor:
        """Mix the tokens of each group, (num_groups, tokens, C).

        The mask never hides all tokens of a group.
        """
        raise NotImplementedError

    def strides(self, length: int) -> list[int]:
        """Return the strides of layers 0, 1, ... before they repeat."""
        laid_out, is_fixed = self.layout_length or length, self.layout_length is not None
        strides = list(_constant_strides(laid_out, self._block(laid_out), is_fixed))
        return strides[::-1] if self.reverse else strides

    def groups(self, length: int) -> tuple[int, int, int]:
        """Return the groups of this layer for `length` tokens; see `fitted_groups`."""
        strides = self.strides(length)
        stride = strides[self.layer_index % len(strides)]
        return fitted_groups(self._block(self.layout_length or length), stride, length)

    def _block(self, length: int) -> int:
        """Tokens per group."""
        return min(self.block_size or default_block_size(length), length)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        length = x.shape[1]
        if self.layout_length is None:
            length = as_constant(length)  # a traced graph supports this length only
        block, stride, missing = self.groups(length)
        if not (is_known(missing) and missing == 0):
            if key_padding_mask is None:
                key_padding_mask = x.new_zeros(x.shape[:2], dtype=torch.bool)
            x = F.pad(x, (0, 0, 0, missing))
            key_padding_mask = F.pad(key_padding_mask, (0, missing), value=True)
        return take_first(mix_groups(self.mix_group, x, block, stride, key_padding_mask), length, 1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block_size={self.block_size}, layer={self.layer_index}"


@constant_for_compiler
def _constant_strides(length: int, block: int, serve_fewer: bool) -> tuple[int, ...]:
    """Hide the search of `butterfly_layout` from compilers."""
    return _known_strides(length, block, serve_fewer)


@functools.lru_cache(maxsize=256)
def _known_strides(length: int, block: int, serve_fewer: bool) -> tuple[int, ...]:
    return tuple(butterfly_layout(length, block, serve_fewer=serve_fewer)[1])


def fitted_groups(block: int, stride: int, length: int) -> tuple[int, int, int]:
    """Compute tokens per group, stride and missing tokens to cover `length` tokens.

    Inputs shorter than block * stride get smaller and fewer groups, to avoid groups that contain
    padding only. A symbolic length in a traced graph is padded to a multiple of block * stride.
    """
    if not is_known(length) or length >= block * stride:
        return block, stride, missing_tokens(block * stride, length)
    stride = min(stride, length)
    block = -(-length // stride)
    return block, stride, block * stride - length


def default_block_size(length: int) -> int:
    """Compute 2^ceil(log2(sqrt(length))) exactly: 8, 16, 32 for 64, 256, 1024."""
    return 1 << ((length - 1).bit_length() + 1) // 2


def mix_groups(
    layer: Callable[..., Tensor],
    x: Tensor,
    block: int,
    stride: int,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """Run a layer on each butterfly group as on a short sequence.

    Args:
        layer: called as layer(x, key_padding_mask=...) with (B * N/block, block, C) tokens and a
            mask of shape (B * N/block, block) or None. The mask never hides all tokens of a group.
        x: (B, N, C) tokens.
        block: tokens per group.
        stride: distance between the tokens of a group.
        key_padding_mask: (B, N) bool, True = padding.

    Returns:
        (B, N, C) in the order of x, zero at padded positions.

    Raises:
        InputError: N is not a multiple of block * stride.

    Source: Dimension Mixer, Algorithm 1.
    """
    (batch, length), mask = x.shape[:2], None
    if is_known(length) and length % (block * stride):
        raise bad_argument("stride", f"a divisor of N / block = {length} / {block}", stride)
    if key_padding_mask is not None:
        x = torch.where(key_padding_mask.unsqueeze(-1), 0.0, x)
    groups = unchecked.butterfly_split(x, block, stride)
    if key_padding_mask is not None:
        mask = unchecked.butterfly_split(key_padding_mask, block, stride).flatten(0, 1)
        # Do not mask a group of padding: softmax over no token is NaN. Its output is zeroed below.
        mask = mask & ~mask.all(dim=1, keepdim=True)
    y = layer(groups.flatten(0, 1), key_padding_mask=mask)
    merged = unchecked.butterfly_merge(y.unflatten(0, (batch, groups.shape[1])), stride)
    if key_padding_mask is None:
        return merged
    return torch.where(key_padding_mask.unsqueeze(-1), 0.0, merged)
