"""BigBird: attention to neighboring blocks, the first and last block, and random blocks."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.compat import take_first
from rifflemix.mixers._attention.multi_head import ValidTokensFirst, short_block_size
from rifflemix.mixers._attention.window import (
    from_blocks,
    see_something,
    to_blocks,
    valid_positions,
    with_neighbours,
)
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.token_groups import group_size
from rifflemix.ops.dropout.backends import dropout_attention

_FEWEST_BLOCKS = 32
_MASK = 2**32 - 1
_Bits = TypeVar("_Bits", int, Tensor)


class BigBird(ValidTokensFirst):
    """Block-sparse attention: window, global and random blocks under one softmax.

    Each block of queries sees itself, the blocks before and after it, the first and last block,
    and `num_random` random blocks. The first and last block see all blocks. No block counts twice.
    The random blocks depend on the seed, the layer, the head, the position of the block and the
    number of blocks with valid tokens.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the attention
            weights.
        block_size: tokens b in a block; the last block may be shorter. Default: 64, or 1/32 of
            `max_length` if that is less.
        num_random: random blocks r per block and head.
        random_seed: seed of the random blocks.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: a number out of range.

    Source: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", section 2 and
    appendix D (internal transformer construction).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("bigbird", 64, num_heads=4, block_size=16, num_random=2)
        >>> mixer(torch.randn(2, 256, 64)).shape
        torch.Size([2, 256, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="bigbird",
        title="BigBird",
        paper="Zaheer et al. 2020, Big Bird: Transformers for Longer Sequences",
        equations="section 2, appendix D",
        complexity="O(N (5 + r) b C), blocks of b, r random",
        cost_exponent=1.0,
    )

    def __init__(
        self,
        dim: int,
        *,
        block_size: int | None = None,
        num_random: int = 3,
        random_seed: int = 0,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        if block_size is None:
            block_size = short_block_size(self.max_length, _FEWEST_BLOCKS)
        self.block_size = check_integer("block_size", block_size, 1)
        self.num_random = check_integer("num_random", num_random, 0)
        self.random_seed = check_integer("random_seed", random_seed, 0, 2**31 - 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        length = q.shape[2]
        block = group_size(self.block_size, length)
        valid = valid_positions(q, key_padding_mask, block)
        last = (valid.any(2) * torch.arange(valid.shape[1], device=q.device)).amax(1)
        random = random_blocks(
            last + 1,
            valid.shape[1],
            self.num_heads,
            self.num_random,
            seed=self.random_seed,
            layer=self.layer_index,
        )
        queries, keys, values = (to_blocks(t, block) for t in (q, k, v))
        y = dropout_attention(
            queries.flatten(0, 1),
            _seen_blocks(keys, last, random.chosen).flatten(0, 1),
            _seen_blocks(values, last, random.chosen).flatten(0, 1),
            mask=_seen_keys(valid, last, random),
            dropout_p=self.dropout_now,
        ).unflatten(0, queries.shape[:2])
        y = self._with_global_rows(y, queries, k, v, valid, last)
        return from_blocks(y, length)

    def _with_global_rows(
        self, y: Tensor, queries: Tensor, k: Tensor, v: Tensor, valid: Tensor, last: Tensor
    ) -> Tensor:
        """Replace the outputs of the first and last block in y (B, blocks, H, b, D)."""
        rows = torch.cat((queries[:, :1], _pick(queries, last)), 1)
        sees = see_something(take_first(valid.flatten(1), k.shape[2], 1)[:, None, None])
        seen = dropout_attention(
            rows.transpose(1, 2).flatten(2, 3), k, v, mask=sees, dropout_p=self.dropout_now
        )
        first, final = seen.unflatten(2, (2, -1)).transpose(1, 2).split(1, 1)
        block = torch.arange(y.shape[1], device=y.device)[None, :, None, None, None]
        y = torch.where(block == last[:, None, None, None, None], final, y)
        return torch.where(block == 0, first, y)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block_size={self.block_size}, num_random={self.num_random}"


class RandomBlocks(NamedTuple):
    """Random key blocks for each query block.

    Attributes:
        chosen: (B, H, blocks, r) int64 block indices.
        exists: (B, H, blocks, r) bool. False if too few blocks were left to draw from.
    """

    chosen: Tensor
    exists: Tensor


def random_blocks(
    num_valid: Tensor, num_blocks: int, heads: int, num_random: int, *, seed: int, layer: int
) -> RandomBlocks:
    """Draw distinct key blocks for each query block, but no global block and no block near it.

    Args:
        num_valid: (B,) number of blocks with valid tokens, at least 1. Only these are drawn.
        num_blocks: number of blocks to draw for.
        heads: number of heads. Each head has its own draws.
        num_random: draws r per block and head.
        seed: seed of the draws.
        layer: index of the layer. Each layer has its own draws.
    """
    device = num_valid.device
    position = torch.arange(num_blocks, device=device)
    last = (num_valid - 1)[:, None]
    # The candidates are blocks 1 ... last - 1, except the consecutive blocks in the window.
    start = (position - 1).clamp(min=1)
    cut = (torch.minimum(position + 1, last - 1) - start + 1).clamp(min=0)
    candidates = ((last - 1).clamp(min=0) - cut).clamp(min=0)[:, None]  # (B, 1, blocks)
    start, cut = start.expand_as(cut)[:, None], cut[:, None]
    head = torch.arange(heads, device=device)[:, None]
    drawn: list[Tensor] = []
    chosen, exists = [], []
    for draw in range(num_random):
        left = candidates - draw
        pick = _hash((seed, layer, draw), head, position) * left.clamp(min=1) >> 32
        if drawn:  # a pick counts only blocks that are still left, so step over the drawn blocks
            for taken in torch.stack(drawn).sort(0).values:
                pick = pick + (pick >= taken)
        drawn.append(pick)
        chosen.append(torch.where(pick + 1 < start, pick + 1, pick + 1 + cut))
        exists.append((left > 0).expand_as(pick))
    if not chosen:
        nothing = num_valid.new_zeros(num_valid.shape[0], heads, num_blocks, 0)
        return RandomBlocks(nothing, nothing.bool())
    return RandomBlocks(torch.stack(chosen, -1).clamp(max=num_blocks - 1), torch.stack(exists, -1))


def _hash(keys: tuple[int, ...], head: Tensor, position: Tensor) -> Tensor:
    """Hash to (H, blocks) int64 in [0, 2^32), independent of device and block count."""
    start = 0  # hashed in Python: a compiler would repeat a long chain of tensor operations
    for key in keys:
        start = _scramble((start ^ key) + 0x9E3779B9 & _MASK)
    return _scramble(start + head * 0x85EBCA6B + position * 0x9E3779B1 & _MASK)


def _scramble(state: _Bits) -> _Bits:
    """Mix the bits of 32-bit numbers with a bijection. Products fit in 63 bits."""
    state = (state ^ state >> 16) * 0x21F0AAAD & _MASK
    state = (state ^ state >> 15) * 0x735A2D97 & _MASK
    return state ^ state >> 15


def _pick(blocks: Tensor, index: Tensor) -> Tensor:
    """Select block index[b] of each sample: (B, blocks, ...) -> (B, 1, ...)."""
    return blocks.gather(1, index.view(-1, *(1,) * (blocks.dim() - 1)).expand_as(blocks[:, :1]))


def _seen_blocks(blocks: Tensor, last: Tensor, random: Tensor) -> Tensor:
    """Gather window, first, last and random blocks: (B, blocks, H, keys, D)."""
    window = with_neighbours(blocks, 1, 1)
    parts = [window, blocks[:, :1].expand_as(blocks), _pick(blocks, last).expand_as(blocks)]
    if random.shape[-1]:
        by_head = blocks.transpose(1, 2)
        index = random.flatten(2)[..., None, None].expand(-1, -1, -1, *blocks.shape[3:])
        drawn = by_head.gather(2, index).unflatten(2, random.shape[2:])
        parts.append(drawn.flatten(3, 4).transpose(1, 2))
    return torch.cat(parts, 3)


def _seen_keys(valid: Tensor, last: Tensor, random: RandomBlocks) -> Tensor:
    """Mask repeated and padded keys of `_seen_blocks`: (B blocks, H, 1, keys) bool."""
    batch, blocks, size = valid.shape
    heads = random.chosen.shape[1]
    position = torch.arange(blocks, device=valid.device)
    near = position.unsqueeze(1) + torch.arange(-1, 2, device=valid.device)
    last = last[:, None, None]
    in_window = (near > 0) & (near < last)  # the first and last block are added below
    window = with_neighbours(valid, 1, 1, dim=2) & in_window.repeat_interleave(size, 2)
    first = valid[:, :1].expand(-1, blocks, -1)
    final = (_pick(valid, last.flatten()) & (last > 0)).expand(-1, blocks, -1)
    fixed = torch.cat((window, first, final), 2)
    fixed = fixed[:, :, None, :].expand(-1, -1, heads, -1)
    rows = valid[:, None].expand(-1, heads, -1, -1)
    index = random.chosen.flatten(2).unsqueeze(-1).expand(-1, -1, -1, size)
    drawn = rows.gather(2, index).unflatten(2, random.chosen.shape[2:])
    drawn = (drawn & random.exists.unsqueeze(-1)).flatten(3).transpose(1, 2)
    seen = torch.cat((fixed, drawn), 3)
    return see_something(seen).view(batch * blocks, heads, 1, -1)
