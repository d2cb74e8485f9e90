"""Softmax attention in blocks and sliding windows of tokens, in memory linear in N.

Each block of queries attends to the keys of its own and of adjacent blocks, so there is no N x N
matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.compat import statically_known_true
from rifflemix.mixers.token_groups import group_size, join_groups, split_groups
from rifflemix.ops.dropout.backends import dropout_attention

# Smallest block for sliding windows: attention in smaller blocks is not faster.
_SMALLEST_BLOCK = 16


class SharedKeys(NamedTuple):
    """Keys that all queries may see, in addition to the keys of their window.

    Attributes:
        keys: (B, H, G, D).
        values: (B, H, G, D).
        visible: (B, N, G) bool, True = query n may attend to shared key g.
    """

    keys: Tensor
    values: Tensor
    visible: Tensor


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_size: int,
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    shared: SharedKeys | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend within contiguous blocks of tokens; the last block may be shorter.

    Args:
        q: (B, H, N, D) queries.
        k: (B, H, N, D) keys.
        v: (B, H, N, D) values.
        block_size: tokens b in a block.
        key_padding_mask: (B, N) bool, True = hidden key.
        causal: a query ignores later positions.
        shared: further keys in the same softmax.
        dropout: probability of dropping an attention weight; 0 in evaluation.

    Returns:
        (B, H, N, D), finite everywhere. Outputs of queries without keys are undefined.

    Raises:
        InputError: `block_size` is less than 1.
    """
    length = q.shape[2]
    block = group_size(check_integer("block_size", block_size, 1), length)
    queries, keys, values = (to_blocks(t, block) for t in (q, k, v))
    if key_padding_mask is None and shared is None and statically_known_true(length % block == 0):
        y = _attend(queries, keys, values, None, dropout, causal=causal)
    else:
        sees = valid_positions(q, key_padding_mask, block).unsqueeze(2)
        if causal:
            sees = sees & torch.ones(block, block, dtype=torch.bool, device=q.device).tril()
        if shared is not None:
            sees = sees.expand(-1, -1, block, -1)
            keys, values, sees = _add_shared(shared, keys, values, sees, block)
        y = _attend(queries, keys, values, sees, dropout)
    return from_blocks(y, length)


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    before: int,
    after: int,
    key_padding_mask: Tensor | None = None,
    shared: SharedKeys | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend in sliding windows: query n sees keys n - before ... n + after.

    Args:
        q: (B, H, N, D) queries.
        k: (B, H, N, D) keys.
        v: (B, H, N, D) values.
        before: number of earlier tokens in a window.
        after: number of later tokens in a window; 0 makes the attention causal.
        key_padding_mask: see `block_attention`.
        shared: see `block_attention`.
        dropout: see `block_attention`.

    Returns:
        (B, H, N, D), finite everywhere. Outputs of queries without keys are undefined.

    Raises:
        InputError: `before` or `after` is negative.
    """
    length = q.shape[2]
    before, after = check_integer("before", before, 0), check_integer("after", after, 0)
    block = group_size(max(before, after, _SMALLEST_BLOCK), length)
    reach = (int(before > 0), int(after > 0))
    keys, values = (with_neighbours(to_blocks(t, block), *reach) for t in (k, v))
    valid = with_neighbours(valid_positions(q, key_padding_mask, block), *reach, dim=2)
    sees = valid.unsqueeze(2) & band(block, before, after, q.device)
    if shared is not None:
        keys, values, sees = _add_shared(shared, keys, values, sees, block)
    return from_blocks(_attend(to_blocks(q, block), keys, values, sees, dropout), length)


def to_blocks(x: Tensor, block_size: int) -> Tensor:
    """Split (B, H, N, D) into (B, N / b, H, b, D), with zeros after the last token."""
    return split_groups(x, block_size, 2).transpose(1, 2)


def from_blocks(x: Tensor, length: int) -> Tensor:
    """Join (B, N / b, H, b, D) to (B, H, N, D), the inverse of `to_blocks`."""
    return join_groups(x.transpose(1, 2), length, 2)


def with_neighbours(x: Tensor, before: int, after: int, dim: int = 3) -> Tensor:
    """Concatenate each block of (B, blocks, ...) with its adjacent blocks, along `dim`.

    The first and the last block get zeros for missing neighbors.
    """
    if not before and not after:
        return x
    blocks = x.shape[1]
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + (before, after))
    return torch.cat([padded.narrow(1, i, blocks) for i in range(before + after + 1)], dim)


def see_something(sees: Tensor) -> Tensor:
    """Let queries without visible keys in `sees` (..., queries, keys) see all keys.

    Their softmax would be NaN. These queries are at padded positions, and their outputs are zeroed
    later.
    """
    return sees | ~sees.any(-1, keepdim=True)


def valid_positions(q: Tensor, key_padding_mask: Tensor | None, block: int) -> Tensor:
    """Return the valid positions of all blocks, (B, N / b, b) bool."""
    batch, length = q.shape[0], q.shape[2]
    if key_padding_mask is None:
        key_padding_mask = torch.zeros(batch, length, dtype=torch.bool, device=q.device)
    return ~split_groups(key_padding_mask, block, 1, value=True)


def band(block: int, before: int, after: int, device: torch.device) -> Tensor:
    """Return the keys of a block and its neighbors in each query's window, (b, keys) bool."""
    position = torch.arange(block, device=device)
    first = -block if before else 0
    last = 2 * block if after else block
    offset = torch.arange(first, last, device=device) - position.unsqueeze(1)
    return (offset >= -before) & (offset <= after)


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    sees: Tensor | None,
    dropout: float,
    *,
    causal: bool = False,
) -> Tensor:
    """Attend from (B, blocks, H, b, D) queries to the keys of their blocks.

    `sees` is (B, blocks, b, keys). The blocks are merged with the batch, because fused kernels
    need four dimensions.
    """
    y: Tensor = dropout_attention(
        queries.flatten(0, 1),
        keys.flatten(0, 1),
        values.flatten(0, 1),
        mask=None if sees is None else see_something(sees).flatten(0, 1).unsqueeze(1),
        dropout_p=dropout,
        is_causal=causal,
    )
    return torch.unflatten(y, 0, (queries.shape[0], -1))


def _add_shared(
    shared: SharedKeys, keys: Tensor, values: Tensor, sees: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Append the shared keys to the keys of every block."""
    blocks = keys.shape[1]
    visible = split_groups(shared.visible, block, 1)
    return (
        torch.cat((keys, shared.keys.unsqueeze(1).expand(-1, blocks, -1, -1, -1)), 3),
        torch.cat((values, shared.values.unsqueeze(1).expand(-1, blocks, -1, -1, -1)), 3),
        torch.cat((sees, visible), 3),
    )
