"""Reference attention over local and sorted blocks, one query at a time: slow, for tests."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from rifflemix.ops.sinkhorn.reference import sort_blocks, sorted_padding_mask


def _attend(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend from one query (D,) to lists of keys and values."""
    if not keys:
        return torch.zeros_like(q)
    weights = (torch.stack(keys) @ q / math.sqrt(q.shape[0])).softmax(0)
    return weights @ torch.stack(values)


def _combine(
    q: Tensor,
    local: list[tuple[Tensor, Tensor] | None],
    distant: list[tuple[Tensor, Tensor] | None],
    combine: str,
) -> Tensor:
    """Attend from one query to (key, value) pairs; None = hidden."""
    near = [pair for pair in local if pair is not None]
    far = [pair for pair in distant if pair is not None]
    if combine == "concat":
        return _attend(q, [k for k, _ in far + near], [v for _, v in far + near])
    if combine == "sum_out":
        sorted_part = _attend(q, [k for k, _ in far], [v for _, v in far])
        return sorted_part + _attend(q, [k for k, _ in near], [v for _, v in near])
    keys = [
        pair[0] + (other[0] if other is not None else 0.0)
        for other, pair in zip(local, distant, strict=True)
        if pair is not None
    ]
    return _attend(q, keys, [v for _, v in far])


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sorted_k: Tensor,
    sorted_v: Tensor,
    combine: str,
    hidden: Tensor | None,
    sorted_hidden: Tensor | None,
    dropout_p: float = 0.0,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.block_attention`; `dropout_p` must be 0."""
    hide = torch.zeros((), dtype=torch.bool) if hidden is None else hidden
    hide_sorted = torch.zeros((), dtype=torch.bool) if sorted_hidden is None else sorted_hidden
    hide = hide.expand(*q.shape[:-1], k.shape[3])
    hide_sorted = hide_sorted.expand(*q.shape[:-1], sorted_k.shape[3])
    out = []
    for position in itertools.product(*(range(size) for size in q.shape[:-1])):
        block = position[:3]
        local = [
            None if hide[position][j] else (k[block][j], v[block][j]) for j in range(k.shape[3])
        ]
        distant = [
            None if hide_sorted[position][j] else (sorted_k[block][j], sorted_v[block][j])
            for j in range(sorted_k.shape[3])
        ]
        out.append(_combine(q[position], local, distant, combine))
    return torch.stack(out).reshape(q.shape)


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
    """See `rifflemix.ops.sinkhorn.sinkhorn_attention`; `dropout_p` must be 0."""
    length, b = k.shape[2], block_size
    # With `causal` or a mask, a zero row is a hidden block; otherwise it is a block of zeros.
    empty_is_hidden = causal or key_padding_mask is not None
    padded = key_padding_mask
    if padded is None:
        padded = torch.zeros(k.shape[0], length, dtype=torch.bool, device=k.device)
    # Position p of the rolled sequence contains token order[p]; blocks are consecutive positions.
    order = [(position + rotation) % length for position in range(length)]
    sorted_k, sorted_v, unseen = _sorted(k, v, sort, b, padded, order, null_kv, padding_rule)
    per_block = 0 if sortcut else sort.shape[2] // (length // b)
    out = torch.zeros_like(q)
    for s, h, position in itertools.product(
        range(q.shape[0]), range(q.shape[1]), range(q.shape[2])
    ):
        token = order[position] if q.shape[2] == length else position
        block = position // b
        rows = range(sortcut) if sortcut else range(block * per_block, (block + 1) * per_block)
        wrapped = position >= length - rotation
        distant: list[tuple[Tensor, Tensor] | None] = [
            None
            if (empty_is_hidden and unseen[s, h, row, j]) or (rotation and wrapped)
            else (sorted_k[s, h, row, j], sorted_v[s, h, row, j])
            for row in rows
            for j in range(b)
        ]
        local: list[tuple[Tensor, Tensor] | None] = []
        if not sortcut or sortcut_local:
            for other in range(block * b, (block + 1) * b):
                near = order[other]
                apart = (other >= length - rotation) != wrapped
                gone = bool(padded[s, near]) or (causal and other > position) or apart
                local.append(None if gone else (k[s, h, near], v[s, h, near]))
        y = _combine(q[s, h, token], local, distant, combine)
        if mixture:
            everyone = range(token + 1) if causal else range(length)
            seen = [t for t in everyone if not padded[s, t]]
            y = y + _attend(q[s, h, token], list(k[s, h, seen]), list(v[s, h, seen]))
        out[s, h, token] = y
    return out


def _sorted(
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    padded: Tensor,
    order: list[int],
    null_kv: tuple[Tensor, Tensor] | None,
    padding_rule: str,
) -> tuple[Tensor, Tensor, Tensor]:
    num_null = sort.shape[-1] - len(order) // block_size
    hidden = sorted_padding_mask(sort, block_size, padded[:, order], padding_rule, num_null)
    sorted_kv = []
    for index, tensor in enumerate((k, v)):
        if padding_rule == "majority":
            tensor = tensor * ~padded[:, None, :, None]
        blocks = torch.unflatten(tensor[:, :, order], 2, (-1, block_size))
        if null_kv is not None:
            null = null_kv[index][None, :, None, None].expand(
                k.shape[0], -1, num_null, block_size, -1
            )
            blocks = torch.cat((null, blocks), 2)
        sorted_kv.append(sort_blocks(blocks, sort))
    return sorted_kv[0], sorted_kv[1], hidden
