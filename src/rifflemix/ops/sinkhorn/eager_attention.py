"""Attention over local and sorted blocks in plain torch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.ops.dropout.backends import dropout, dropout_attention
from rifflemix.ops.sinkhorn.eager import sort_blocks, sorted_padding_mask


def sinkhorn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    *,
    combine: str,
    sortcut: int,
    sortcut_local: bool,
    mixture: bool,
    causal: bool,
    key_padding_mask: Tensor | None,
    null_kv: tuple[Tensor, Tensor] | None,
    padding_rule: str,
    rotation: int,
    dropout_p: float,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sinkhorn_attention`."""
    full = full_attention(q, k, v, causal, key_padding_mask, dropout_p) if mixture else None
    if rotation:
        q, k, v = (t.roll(-rotation, 2) for t in (q, k, v))
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.roll(-rotation, 1)
    if sortcut:
        sort = sort[:, :, :sortcut]
    sorted_k, sorted_v, unseen = _sorted_sources(
        k, v, sort, block_size, causal, key_padding_mask, null_kv, padding_rule
    )
    if sortcut and not sortcut_local:
        hidden = None if unseen is None else unseen.flatten(2).unsqueeze(2)
        y = attend(q, sorted_k.flatten(2, 3), sorted_v.flatten(2, 3), hidden, dropout_p)
    else:
        # Copy the queries out of the joint Q/K/V tensor, with the heads of a token contiguous. The
        # gradient then keeps the copy instead of the whole joint tensor: keys and values are only
        # needed in blocks.
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
        blocks = (-1, block_size)
        q_blocks, k_blocks = torch.unflatten(q, 2, blocks), torch.unflatten(k, 2, blocks)
        v_blocks = torch.unflatten(v, 2, blocks)
        hidden = _local_hidden(key_padding_mask, block_size, causal, q.device)
        sorted_k, sorted_v, unseen = _per_query_block(
            sorted_k, sorted_v, unseen, q_blocks.shape[2], shared=bool(sortcut)
        )
        if rotation:
            hidden, unseen = _hide_wrapped(hidden, unseen, q_blocks, rotation)
        y = block_attention(
            q_blocks, k_blocks, v_blocks, sorted_k, sorted_v, combine, hidden, unseen, dropout_p
        )
        y = y.flatten(2, 3)
        if rotation:  # torch.roll copies even if the shift is 0
            y = y.roll(rotation, 2)
    return y if full is None else y + full


def _sorted_sources(
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    causal: bool,
    key_padding_mask: Tensor | None,
    null_kv: tuple[Tensor, Tensor] | None,
    padding_rule: str,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute sorted keys and values, and their hidden positions.

    The shapes are (B, H, R, b, D) and (B, H, R, b).
    """
    num_null = sort.shape[-1] - k.shape[2] // block_size
    if key_padding_mask is not None and padding_rule == "majority":
        padded = key_padding_mask[:, None, :, None]
        k, v = torch.where(padded, 0.0, k), torch.where(padded, 0.0, v)
    keys, values = torch.unflatten(k, 2, (-1, block_size)), torch.unflatten(v, 2, (-1, block_size))
    if null_kv is not None:
        keys = torch.cat((_null_blocks(null_kv[0], keys, num_null), keys), 2)
        values = torch.cat((_null_blocks(null_kv[1], values, num_null), values), 2)
    unseen = None
    if causal or key_padding_mask is not None:
        unseen = sorted_padding_mask(sort, block_size, key_padding_mask, padding_rule, num_null)
    return sort_blocks(keys, sort), sort_blocks(values, sort), unseen


def _null_blocks(null: Tensor, blocks: Tensor, num_null: int) -> Tensor:
    """Repeat (H, D) to (B, H, num_null, b, D)."""
    batch, heads, _, block_size, width = blocks.shape
    return null[:, None, None].expand(batch, heads, num_null, block_size, width)


def _per_query_block(
    sorted_k: Tensor, sorted_v: Tensor, unseen: Tensor | None, num_blocks: int, shared: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Group the sorted keys and values by query block.

    The shapes are (B, H, n, s, D), and (B, H, n, 1, s) for the mask of hidden keys.
    """
    rows = 1 if shared else num_blocks
    sorted_k = torch.unflatten(sorted_k, 2, (rows, -1)).flatten(3, 4)
    sorted_v = torch.unflatten(sorted_v, 2, (rows, -1)).flatten(3, 4)
    if unseen is not None:
        unseen = torch.unflatten(unseen, 2, (rows, -1)).flatten(3).unsqueeze(-2)
    shape = (-1, -1, num_blocks, -1, -1)
    return sorted_k.expand(shape), sorted_v.expand(shape), unseen


def _local_hidden(
    key_padding_mask: Tensor | None, block_size: int, causal: bool, device: torch.device
) -> Tensor | None:
    """Mask hidden local keys; broadcasts to (B, H, n, b, b)."""
    hidden = None
    if causal:
        hidden = torch.ones(block_size, block_size, dtype=torch.bool, device=device).triu(1)
    if key_padding_mask is not None:
        padded = torch.unflatten(key_padding_mask[:, None], -1, (-1, block_size)).unsqueeze(-2)
        hidden = padded if hidden is None else hidden | padded
    return hidden


def _hide_wrapped(
    hidden: Tensor | None, unseen: Tensor | None, q: Tensor, rotation: int
) -> tuple[Tensor, Tensor]:
    """Separate the last `rotation` tokens from all others: they wrapped around."""
    num_blocks, block_size = q.shape[2:4]
    position = torch.arange(num_blocks * block_size, device=q.device)
    wrapped = (position >= num_blocks * block_size - rotation).reshape(num_blocks, block_size)
    apart = wrapped.unsqueeze(-1) != wrapped.unsqueeze(-2)
    alone = wrapped.unsqueeze(-1)
    return (
        apart if hidden is None else apart | hidden,
        alone if unseen is None else alone | unseen,
    )


def full_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    key_padding_mask: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Compute softmax attention over all tokens, the second term of the mixture."""
    if key_padding_mask is None:
        return dropout_attention(q, k, v, is_causal=causal, dropout_p=dropout_p)
    hidden = key_padding_mask[:, None, None]
    if causal:
        length = q.shape[2]
        hidden = hidden | hidden.new_ones(length, length).triu(1)
    return attend(q, k, v, hidden, dropout_p)


def attend(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, dropout_p: float = 0.0
) -> Tensor:
    """Compute softmax attention over the last two dimensions; zero without visible keys.

    `q` is (..., M, D), `k` and `v` are (..., S, D), with two or three leading dimensions. `hidden`
    is a bool mask that broadcasts to (..., M, S), True = hidden.
    """
    blind = None
    mask = None
    if hidden is not None:
        hidden = torch.atleast_2d(hidden)
        blind = hidden.all(-1, keepdim=True)
        # A query without keys would give NaN. It attends to all keys, and is zeroed at the end.
        mask = ~hidden | blind
        if q.dim() == 5 and mask.dim() > 2:
            mask = mask.reshape(*(1,) * (5 - mask.dim()), *mask.shape).transpose(1, 2)
            mask = mask.expand(q.shape[0], q.shape[2], -1, -1, -1).flatten(0, 1)
    if q.dim() == 4:
        y = dropout_attention(q, k, v, mask=mask, dropout_p=dropout_p)
    else:  # merge samples and blocks: fused kernels need 4 dimensions, heads together
        batch, blocks = q.shape[0], q.shape[2]
        q = q.transpose(1, 2).flatten(0, 1)
        k, v = k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1)
        y = dropout_attention(q, k, v, mask=mask, dropout_p=dropout_p)
        y = y.unflatten(0, (batch, blocks)).transpose(1, 2)
    return y if blind is None else y.masked_fill(blind, 0.0)


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sorted_k: Tensor,
    sorted_v: Tensor,
    combine: str,
    hidden: Tensor | None,
    sorted_hidden: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.block_attention`."""
    if combine == "sum_out":
        local = attend(q, k, v, hidden, dropout_p)
        return local + attend(q, sorted_k, sorted_v, sorted_hidden, dropout_p)
    if combine == "sum_logits":
        return _sum_logits(q, k, sorted_k, sorted_v, hidden, sorted_hidden, dropout_p)
    both = None
    if hidden is not None or sorted_hidden is not None:
        both = torch.cat((_full(sorted_hidden, q, sorted_k), _full(hidden, q, k)), -1)
    # Use the memory layout that `attend` reads, heads after blocks, to avoid another copy.
    keys = torch.cat((sorted_k.transpose(1, 2), k.transpose(1, 2)), -2).transpose(1, 2)
    values = torch.cat((sorted_v.transpose(1, 2), v.transpose(1, 2)), -2).transpose(1, 2)
    return attend(q, keys, values, both, dropout_p)


def _full(hidden: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
    shape = (*q.shape[:-1], k.shape[-2])
    if hidden is None:
        return torch.zeros((), dtype=torch.bool, device=q.device).expand(shape)
    return hidden.expand(shape)


def _sum_logits(
    q: Tensor,
    k: Tensor,
    sorted_k: Tensor,
    sorted_v: Tensor,
    hidden: Tensor | None,
    sorted_hidden: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Compute softmax(Q psi(K)^T + Q K^T) psi(V).

    Hidden local keys do not shift the logits.
    """
    q = q * q.shape[-1] ** -0.5
    local = q @ k.transpose(-1, -2)
    if hidden is not None:
        local = local.masked_fill(hidden, 0.0)
    logits = q @ sorted_k.transpose(-1, -2) + local
    if sorted_hidden is not None:
        logits = logits.masked_fill(sorted_hidden, torch.finfo(logits.dtype).min)
    weights = logits.softmax(-1)
    if sorted_hidden is not None:
        weights = weights.masked_fill(sorted_hidden, 0.0)
    return dropout(weights, dropout_p) @ sorted_v
