"""Reference Sparse Sinkhorn sorting, one entry at a time: slow, to test the other backends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def _for_each_matrix(
    scores: Tensor,
    block_padding_mask: Tensor | None,
    run: Callable[[Tensor, list[bool]], Tensor],
    num_blocks: int,
) -> Tensor:
    """Apply `run` to every matrix and its list of padding blocks."""
    leading = scores.shape[:-2]
    results = []
    for position in itertools.product(*(range(size) for size in leading)):
        dead = [False] * num_blocks
        if block_padding_mask is not None:
            dead = (block_padding_mask[position[0]] if leading else block_padding_mask).tolist()
        results.append(run(scores[position], dead))
    if not results:
        shape = run(scores.new_zeros(scores.shape[-2:]), [False] * num_blocks).shape
        return scores.new_zeros(*leading, *shape)
    return torch.stack(results).reshape(*leading, *results[0].shape)


def _log_sum_exp(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).logsumexp(0)


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    causal: bool,
    final_row_norm: bool,
    block_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sinkhorn`."""

    def balance(scores: Tensor, dead: list[bool]) -> Tensor:
        n = len(dead)
        r = {
            (u, v): scores[u, v]
            for u in range(n)
            for v in range(n)
            if not dead[u] and not dead[v] and not (causal and v >= u)
            if scores[u, v] != -math.inf
        }

        def normalise_rows() -> None:
            for u in range(n):
                row = [position for position in r if position[0] == u]
                if row:
                    norm = _log_sum_exp(r[position] for position in row)
                    r.update({position: r[position] - norm for position in row})

        def normalise_columns() -> None:
            for v in range(n):
                column = [position for position in r if position[1] == v]
                norms = {
                    (u, v): _log_sum_exp(r[p] for p in column if not causal or p[0] <= u)
                    for u, v in column
                }
                r.update({position: r[position] - norms[position] for position in column})

        for _ in range(num_iterations):
            normalise_rows()
            normalise_columns()
        if causal and final_row_norm and num_iterations:
            normalise_rows()
        zero = scores.new_zeros(())
        entries = [r[u, v].exp() if (u, v) in r else zero for u in range(n) for v in range(n)]
        return torch.stack(entries).reshape(n, n)

    return _for_each_matrix(log_scores, block_padding_mask, balance, log_scores.shape[-1])


def top_k_blocks(
    scores: Tensor,
    k: int,
    temperature: float,
    causal: bool,
    num_null: int,
    block_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.top_k_blocks`."""
    rows, columns = scores.shape[-2:]

    def select(matrix: Tensor, dead: list[bool]) -> Tensor:
        out = []
        for u in range(rows):
            left = [
                v
                for v in range(columns)
                if v < num_null or not (dead[v - num_null] or (causal and v - num_null >= u))
                if matrix[u, v] != -math.inf and not (rows == len(dead) and dead[u])
            ]
            for _ in range(k):
                row = list(matrix.new_zeros(columns).unbind())
                if left:
                    weights = torch.stack([matrix[u, v] / temperature for v in left]).softmax(0)
                    chances = weights.tolist()
                    best = chances.index(max(chances))
                    row[left.pop(best)] = weights[best]
                out.append(torch.stack(row))
        return torch.stack(out)

    return _for_each_matrix(scores, block_padding_mask, select, columns - num_null)


def _valid_tokens(mask: Tensor | None, sample: int, tokens: Iterable[int]) -> list[int]:
    return [t for t in tokens if mask is None or not mask[sample, t]]


def pool_blocks(
    x: Tensor, block_size: int, causal: bool, key_padding_mask: Tensor | None
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.pool_blocks`."""
    batch, length, channels = x.shape
    out = x.new_zeros(batch, length // block_size, channels)
    for b, u in itertools.product(range(batch), range(length // block_size)):
        start = u * block_size
        tokens = range(start + 1) if causal else range(start, start + block_size)
        for token in _valid_tokens(key_padding_mask, b, tokens):
            out[b, u] += x[b, token]
    return out


def block_scores(
    q: Tensor,
    k: Tensor,
    block_size: int,
    causal: bool,
    shared: bool,
    key_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.block_scores`."""
    batch, heads, length, width = q.shape
    n = length // block_size

    def mean(x: Tensor, b: int, h: int, tokens: Iterable[int]) -> Tensor:
        valid = _valid_tokens(key_padding_mask, b, tokens)
        return x[b, h, valid].sum(0) / max(len(valid), 1)

    def tokens_of(u: int) -> range:
        return range(u * block_size, (u + 1) * block_size)

    def destination(b: int, h: int, u: int) -> Tensor:
        if causal:
            return mean(q, b, h, range(u * block_size + 1))
        return mean(q, b, h, range(length) if shared else tokens_of(u))

    def source(b: int, h: int, v: int) -> Tensor:
        if not causal:
            return mean(k, b, h, tokens_of(v))
        total = k.new_zeros(width)
        for token in _valid_tokens(key_padding_mask, b, tokens_of(v)):
            total = total + mean(k, b, h, range(token + 1))
        return total

    rows = 1 if shared else n
    scores = [
        destination(b, h, u) @ source(b, h, v) / math.sqrt(width)
        for b, h, u, v in itertools.product(range(batch), range(heads), range(rows), range(n))
    ]
    if not scores:
        return q.new_zeros(batch, heads, rows, n)
    return torch.stack(scores).reshape(batch, heads, rows, n)


def sort_blocks(blocks: Tensor, sort: Tensor) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sort_blocks`."""
    rows = [
        sum(
            (sort[..., u, v, None, None] * blocks[..., v, :, :] for v in range(sort.shape[-1])),
            start=blocks.new_zeros(()),
        )
        for u in range(sort.shape[-2])
    ]
    return torch.stack(rows, -3)


def sorted_padding_mask(
    sort: Tensor, block_size: int, key_padding_mask: Tensor | None, rule: str, num_null: int
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sorted_padding_mask`."""
    batch, heads, rows, columns = sort.shape
    hidden = torch.zeros(batch, heads, rows, block_size, dtype=torch.bool, device=sort.device)

    def valid(b: int, v: int, position: int) -> bool:
        token = (v - num_null) * block_size + position
        return v < num_null or key_padding_mask is None or not key_padding_mask[b, token]

    for b, h, u, position in itertools.product(*map(range, hidden.shape)):
        weights = sort[b, h, u].tolist()
        if rule == "majority":
            seen = sum(weights[v] for v in range(columns) if valid(b, v, position))
            enough = 2 * seen >= sum(weights)
        else:
            enough = valid(b, weights.index(max(weights)), position)
        hidden[b, h, u, position] = not (enough and sum(weights) > 0)
    return hidden


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
