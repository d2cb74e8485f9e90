"""Base class for mixers within the strided groups of a butterfly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.compat import as_constant, constant_for_compiler
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.token_groups import (
    default_group_size,
    fitted_stride,
    mix_full_groups,
    reference_length,
)
from rifflemix.ops.butterfly import backends, butterfly_layout


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
            block_size = default_group_size(self.max_length)
        self.block_size = block_size
        self.reference_length = reference_length(layout, self.max_length)
        self.reverse = reverse

    def mix_group(self, groups: Tensor, *, key_padding_mask: Tensor | None) -> Tensor:
        """Mix the tokens of each group.

        Args:
            groups: (G, M, C) tokens, G groups of M tokens.
            key_padding_mask: (G, M) bool, True = padding, or None. It never hides all tokens
                of a group.

        Returns:
            (G, M, C) mixed tokens.
        """
        raise NotImplementedError

    def strides(self, length: int) -> list[int]:
        """Return the strides of layers 0, 1, ... before they repeat, for `length` tokens."""
        laid_out, is_fixed = self.reference_length or length, self.reference_length is not None
        strides = list(_constant_strides(laid_out, self._block(laid_out), is_fixed))
        return strides[::-1] if self.reverse else strides

    def groups(self, length: int) -> tuple[int, int]:
        """Return the tokens per group and the stride of this layer for `length` tokens."""
        strides = self.strides(length)
        stride = strides[self.layer_index % len(strides)]
        return fitted_stride(self._block(self.reference_length or length), stride, length)

    def _block(self, length: int) -> int:
        """Tokens per group."""
        return min(self.block_size or default_group_size(length), length)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        length = x.shape[1]
        if self.reference_length is None:
            length = as_constant(length)  # a traced graph supports this length only
        block, stride = self.groups(length)
        mix = functools.partial(mix_groups, self.mix_group, block=block, stride=stride)
        return mix_full_groups(mix, x, key_padding_mask, block * stride)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block_size={self.block_size}, layer={self.layer_index}"


@constant_for_compiler
def _constant_strides(length: int, block: int, serve_fewer: bool) -> tuple[int, ...]:
    """Hide the search of `butterfly_layout` from compilers."""
    return _known_strides(length, block, serve_fewer)


@functools.lru_cache(maxsize=256)
def _known_strides(length: int, block: int, serve_fewer: bool) -> tuple[int, ...]:
    return tuple(butterfly_layout(length, block, serve_fewer=serve_fewer)[1])


def mix_groups(
    layer: Callable[..., Tensor],
    x: Tensor,
    key_padding_mask: Tensor | None,
    *,
    block: int,
    stride: int,
) -> Tensor:
    """Run a layer on each butterfly group as on a short sequence.

    Args:
        layer: called as layer(x, key_padding_mask=...) with (B * N/block, block, C) tokens and a
            mask of shape (B * N/block, block) or None. The mask never hides all tokens of a group.
        x: (B, N, C) tokens, N a multiple of block * stride.
        key_padding_mask: (B, N) bool, True = padding, or None.
        block: tokens per group.
        stride: distance between the tokens of a group.

    Returns:
        (B, N, C) in the order of x, zero at padded positions.

    Source: Dimension Mixer, Algorithm 1.
    """
    batch, mask = x.shape[0], None
    if key_padding_mask is not None:
        x = torch.where(key_padding_mask.unsqueeze(-1), 0.0, x)
    module = backends.FAMILY.pick()
    groups = module.butterfly_split(x, block, stride, 1)
    if key_padding_mask is not None:
        mask = module.butterfly_split(key_padding_mask, block, stride, 1).flatten(0, 1)
        # Do not mask a group of padding: softmax over no token is NaN. Its output is zeroed below.
        mask = mask & ~mask.all(dim=1, keepdim=True)
    y = layer(groups.flatten(0, 1), key_padding_mask=mask)
    y = y.unflatten(0, (batch, groups.shape[1]))
    merged: Tensor = module.butterfly_merge(y, stride, 1)
    if key_padding_mask is None:
        return merged
    return torch.where(key_padding_mask.unsqueeze(-1), 0.0, merged)
