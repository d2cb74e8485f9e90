"""Softmax attention within blocks and sliding windows of tokens, in memory linear in N.

Queries are cut into blocks, each with the keys of its own and neighbouring blocks, so that no
score is computed further out than a block and no N x N tensor exists.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.compat import statically_known_true, take_first
from rifflemix.mixers.padding import block_of, missing_tokens
from rifflemix.ops.dropout.unchecked import dropout_attention

# Windows narrower than this are cut from blocks of this many tokens: tiny ones do not pay.
_SMALLEST_BLOCK = 16


class SharedKeys(NamedTuple):
    """Keys that queries anywhere may see, beside those of their window.

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
    """Attention within contiguous blocks of tokens; the last one may be shorter.

    Args:
        q: (B, H, N, D) queries; k and v: keys and values of the same shape.
        k: see q.
        v: see q.
        block_size: tokens b in a block.
        key_padding_mask: (B, N) bool, True = a key that no block shows.
        causal: a query sees its own and earlier positions of its block only.
        shared: keys that compete with those of the block in the same softmax.
        dropout: probability with which attention weights are dropped; 0 in evaluation.

    Returns:
        (B, H, N, D), finite at every position; undefined where a query sees nothing.

    Raises:
        InputError: `block_size` under 1.
    """
    length = q.shape[2]
    block = block_of(check_integer("block_size", block_size, 1), length)
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
    """Sliding-window attention: query n sees keys n - before ... n + after.

    Args:
        q: (B, H, N, D) queries; k and v: keys and values of the same shape.
        k: see q.
        v: see q.
        before: earlier tokens in a window.
        after: later tokens in a window; 0 makes the attention causal.
        key_padding_mask: (B, N) bool, True = a key that no window shows.
        shared: keys that compete with those of the window in the same softmax.
        dropout: probability with which attention weights are dropped; 0 in evaluation.

    Returns:
        (B, H, N, D), finite at every position; undefined where a query sees nothing.

    Raises:
        InputError: a window that reaches a negative number of tokens.
    """
    length = q.shape[2]
    before, after = check_integer("before", before, 0), check_integer("after", after, 0)
    block = block_of(max(before, after, _SMALLEST_BLOCK), length)
    reach = (int(before > 0), int(after > 0))
    keys, values = (with_neighbours(to_blocks(t, block), *reach) for t in (k, v))
    valid = with_neighbours(valid_positions(q, key_padding_mask, block), *reach, dim=2)
    sees = valid.unsqueeze(2) & band(block, before, after, q.device)
    if shared is not None:
        keys, values, sees = _add_shared(shared, keys, values, sees, block)
    return from_blocks(_attend(to_blocks(q, block), keys, values, sees, dropout), length)


def to_blocks(x: Tensor, block_size: int) -> Tensor:
    """(B, H, N, D) to (B, N / b, H, b, D), with zeros after the last token."""
    x = F.pad(x, (0, 0, 0, missing_tokens(block_size, x.shape[2])))
    return torch.unflatten(x, 2, (-1, block_size)).transpose(1, 2)


def from_blocks(x: Tensor, length: int) -> Tensor:
    """(B, N / b, H, b, D) back to (B, H, N, D) of the first `length` tokens."""
    return take_first(x.transpose(1, 2).flatten(2, 3), length, 2)


def with_neighbours(x: Tensor, before: int, after: int, dim: int = 3) -> Tensor:
    """Each block of (B, blocks, ...) joined along `dim` with as many blocks on either side.

    Zeros stand where there is no neighbour.
    """
    if not before and not after:
        return x
    blocks = x.shape[1]
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + (before, after))
    return torch.cat([padded.narrow(1, i, blocks) for i in range(before + after + 1)], dim)


def see_something(sees: Tensor) -> Tensor:
    """`sees` (..., queries, keys), where a query that would see no key sees all of them.

    Its softmax would be NaN otherwise. Only queries at padded positions are such, and what comes
    out there is zeroed later.
    """
    return sees | ~sees.any(-1, keepdim=True)


def valid_positions(q: Tensor, key_padding_mask: Tensor | None, block: int) -> Tensor:
    """(B, N / b, b) bool: True = a key that may be seen, False also after the last token."""
    batch, length = q.shape[0], q.shape[2]
    if key_padding_mask is None:
        key_padding_mask = torch.zeros(batch, length, dtype=torch.bool, device=q.device)
    padded = F.pad(key_padding_mask, (0, missing_tokens(block, length)), value=True)
    return ~torch.unflatten(padded, 1, (-1, block))


def band(block: int, before: int, after: int, device: torch.device) -> Tensor:
    """(b, keys) bool: which keys of a block and its neighbours lie in a query's window."""
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
    """Attention of (B, blocks, H, b, D) queries to their block's keys; sees: (B, blocks, b, keys).

    Blocks join the batch, which keeps the four dimensions that fused kernels take.
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
    """Append the shared keys to those of every block."""
    blocks = keys.shape[1]
    visible = F.pad(shared.visible, (0, 0, 0, missing_tokens(block, shared.visible.shape[1])))
    return (
        torch.cat((keys, shared.keys.unsqueeze(1).expand(-1, blocks, -1, -1, -1)), 3),
        torch.cat((values, shared.values.unsqueeze(1).expand(-1, blocks, -1, -1, -1)), 3),
        torch.cat((sees, visible.unflatten(1, (-1, block))), 3),
    )
