"""Butterfly attention: softmax attention in strided groups, complete after a few layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.compat import as_constant, constant_for_compiler, is_known, take_first
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.mixers.padding import blocks_and_size
from rifflemix.ops.butterfly import butterfly_layout, butterfly_split, unchecked


class Butterfly(TokenMixer):
    """One sublayer of butterfly attention: every group of `block_size` tokens attends to itself.

    The tokens of a group lie one stride apart; `layer_index` picks the stride, so that a stack of
    as many layers as `strides(N)` has entries lets every token reach every other. Lengths that
    the block does not divide are padded inside; the padding is masked, and strides are added
    where it would cut tokens off.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the attention
            weights.
        block_size: a, tokens per group, at least 2. Default: the power of two at or above sqrt(S)
            where S is `max_length` if given, else the number of tokens at hand. Shorter inputs
            than a block are one group.
        bias: add a bias to the query, key, value and output maps.
        reverse: go through the strides from the largest to 1.
        token_order: "natural", or "random" for one fixed random order of the tokens, the same in
            every layer (the paper's "Rand Butt."; needs `max_length`).
        token_order_seed: seed of that order.
        shared: the other arguments of `TokenMixer`.

    Source: Dimension Mixer, section 3.1 and Algorithm 1; appendix B for the random order.
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="butterfly",
        title="Butterfly attention",
        paper="Sapkota and Bhattarai 2025, Dimension Mixer",
        equations="Algorithm 1",
        complexity="O(N sqrt(N) C)",
        cost_exponent=1.5,
        layout_over_length="groups are laid out over all N positions, padded ones included",
    )
    token_rank: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        block_size: int | None = None,
        bias: bool = True,
        reverse: bool = False,
        token_order: str = "natural",
        token_order_seed: int = 0,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("token_order", token_order, ("natural", "random"))
        if block_size is not None:
            block_size = check_integer("block_size", block_size, 2)
        if block_size is None and self.max_length is not None:
            block_size = default_block_size(self.max_length)
        self.block_size = block_size
        self.reverse = reverse
        self.attention = SoftmaxAttention(
            self.dim, num_heads=self.num_heads, dropout=self.dropout, bias=bias
        )
        rank = None
        if token_order == "random":
            rank = self._random_rank(token_order_seed)
        self.register_buffer("token_rank", rank)

    def _random_rank(self, seed: int) -> Tensor:
        """(max_length,) position of each token in the random order."""
        if self.max_length is None:
            raise bad_argument("max_length", "a length to draw the random token_order for", None)
        seed = check_integer("token_order_seed", seed, 0, 2**64 - 1)
        generator = torch.Generator().manual_seed(seed)
        # The generator draws on the CPU only, whatever the default device.
        order = torch.randperm(self.max_length, generator=generator, device="cpu")
        return torch.empty(self.max_length, dtype=order.dtype).copy_(order)

    def strides(self, length: int) -> list[int]:
        """Strides that layers 0, 1, ... use on `length` tokens, before they repeat."""
        strides = self._layout(length)[2]
        return strides[::-1] if self.reverse else strides

    def _layout(self, length: int) -> tuple[int, int, list[int]]:
        """Tokens per group, the length to pad to, and the strides."""
        block = min(self.block_size or default_block_size(length), length)
        return (block, *_constant_layout(length, block))

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Attention within the groups of this layer's stride."""
        if self.token_rank is None:
            return self._mix_in_order(x, key_padding_mask)
        order = take_first(self.token_rank, x.shape[1], 0).argsort()
        mask = None if key_padding_mask is None else key_padding_mask[:, order]
        return self._mix_in_order(x[:, order], mask)[:, order.argsort()]

    def _mix_in_order(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if not is_known(x.shape[1]) and self.block_size is not None and self.max_length is not None:
            return self._mix_any_length(x, key_padding_mask)
        # Without a max_length the block is not bounded: a traced graph holds for one length.
        length = as_constant(x.shape[1])
        block, padded, _ = self._layout(length)
        strides = self.strides(length)
        stride = strides[self.layer_index % len(strides)]
        if padded > length:
            if key_padding_mask is None:
                key_padding_mask = x.new_zeros(x.shape[:2], dtype=torch.bool)
            x = F.pad(x, (0, 0, 0, padded - length))
            key_padding_mask = F.pad(key_padding_mask, (0, padded - length), value=True)
        return mix_groups(self.attention, x, block, stride, key_padding_mask)[:, :length]

    def _mix_any_length(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """The same for a length that is a symbol in a traced graph.

        There the stride is a tensor, looked up by the length, and groups are gathered by index.
        """
        length = x.shape[1]
        block, most = cast(int, self.block_size), cast(int, self.max_length)
        strides = _constant_strides(most, block, self.layer_index, self.reverse)
        stride = torch.tensor(strides, device=x.device)[length]
        num_groups = _most_groups(length, block, most)
        slot = torch.arange(num_groups * block, device=x.device)
        group, place = slot // block, slot % block
        position = group // stride * (block * stride) + group % stride + place * stride
        mask = position >= length
        position = position.clamp(max=length - 1)
        groups = x.index_select(1, position).unflatten(1, (num_groups, block))
        if key_padding_mask is not None:
            mask = mask | key_padding_mask.index_select(1, position)
        mask = mask.expand(x.shape[0], -1).unflatten(1, (num_groups, block)).flatten(0, 1)
        y = _attend_groups(self.attention, groups.flatten(0, 1), mask)
        here = torch.arange(length, device=x.device)
        group = here // (block * stride) * stride + here % stride
        slot = group * block + here // stride % block
        mixed: Tensor = y.unflatten(0, (x.shape[0], num_groups)).flatten(1, 2)
        return mixed.index_select(1, slot)

    def extra_repr(self) -> str:
        """The settings, for print(model)."""
        return f"{super().extra_repr()}, block_size={self.block_size}, layer={self.layer_index}"


@constant_for_compiler
def _constant_layout(length: int, block: int) -> tuple[int, list[int]]:
    """`butterfly_layout` where a compiler must not trace into its search."""
    return butterfly_layout(length, block)


@constant_for_compiler
def _constant_strides(
    max_length: int, block: int, layer_index: int, reverse: bool
) -> tuple[int, ...]:
    """`_strides_by_length` where a compiler must not trace into it."""
    return _strides_by_length(max_length, block, layer_index, reverse)


@functools.lru_cache(maxsize=256)
def _strides_by_length(
    max_length: int, block: int, layer_index: int, reverse: bool
) -> tuple[int, ...]:
    """The stride of a layer for each length from 0, which nothing has, to `max_length`."""
    found = [1]
    for length in range(1, max_length + 1):
        strides = butterfly_layout(length, block)[1]
        found.append(strides[:: -1 if reverse else 1][layer_index % len(strides)])
    return tuple(found)


def _most_groups(length: int, block: int, max_length: int) -> int:
    """Groups of `butterfly_layout`, or more, in arithmetic that symbols go through.

    The layout pads to a power of the block that is shorter than the tokens, so to less than twice
    their number, and only to the block where no second power is. Groups beyond the layout hold
    nothing but padding.
    """
    blocks, _ = blocks_and_size(block, length)
    return blocks if block * block >= max_length else 2 * blocks


def default_block_size(length: int) -> int:
    """2^ceil(log2(sqrt(length))): 8, 16, 32 for 64, 256, 1024; in integers, without rounding."""
    return 1 << ((length - 1).bit_length() + 1) // 2


def mix_groups(
    layer: Callable[..., Tensor],
    x: Tensor,
    block: int,
    stride: int,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """Run a layer on every butterfly group of tokens as on a short sequence.

    Args:
        layer: called as layer(x, key_padding_mask=...) with (B * N/block, block, C) tokens and a
            mask of shape (B * N/block, block) or None; it never masks all tokens of a group.
        x: (B, N, C) tokens.
        block: tokens per group.
        stride: distance between the tokens of a group.
        key_padding_mask: (B, N) bool, True = padding; goes through the same permutation.

    Returns:
        (B, N, C) in the order of x, zero at padded positions.

    Raises:
        InputError: block * stride does not divide N.

    Source: Dimension Mixer, Algorithm 1.
    """
    batch = x.shape[0]
    if key_padding_mask is None:
        groups = butterfly_split(x, block, stride)
        y = layer(groups.flatten(0, 1), key_padding_mask=None)
        return unchecked.butterfly_merge(y.unflatten(0, (batch, groups.shape[1])), stride)
    padded = key_padding_mask.unsqueeze(-1)
    groups = butterfly_split(x.masked_fill(padded, 0.0), block, stride)
    mask = unchecked.butterfly_split(key_padding_mask, block, stride).flatten(0, 1)
    y = _attend_groups(layer, groups.flatten(0, 1), mask)
    merged = unchecked.butterfly_merge(y.unflatten(0, (batch, groups.shape[1])), stride)
    return merged.masked_fill(padded, 0.0)


def _attend_groups(layer: Callable[..., Tensor], groups: Tensor, mask: Tensor) -> Tensor:
    """A layer on groups (G, block, C) with a mask (G, block), which may hide all of a group.

    Softmax over no token is NaN: a group of padding goes in as zeros, and is zeroed afterwards.
    """
    return layer(groups, key_padding_mask=mask & ~mask.all(dim=1, keepdim=True))
