"""Attention between tokens whose vectors fall into the same random buckets, as in Reformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import as_constant, stable_order, statically_known_true, take_first
from rifflemix.mixers.padding import block_of, missing_tokens
from rifflemix.ops.dropout.unchecked import dropout as drop

# Stands for a token's score with itself: it counts only where nothing else is seen.
_SELF_SCORE = -1e5
_LENGTH_EPSILON = 1e-6


def lsh_buckets(vectors: Tensor, rotations: Tensor, factors: Sequence[int]) -> Tensor:
    """Bucket of each vector in each round: the largest coordinate of [x R; -x R].

    With several factors the bucket is a number whose digits are found each by its own columns.

    Args:
        vectors: (B, H, N, D).
        rotations: (H, D, rounds, half the sum of the factors), random normal.
        factors: even numbers; their product is the number of buckets.

    Returns:
        (B, H, rounds, N) int64; no gradient.

    Source: Kitaev et al. 2020, section 2, "Locality sensitive hashing".
    """
    wide = torch.promote_types(vectors.dtype, torch.float32)
    rotated = torch.einsum("bhnd,hdrf->bhrnf", vectors.detach().to(wide), rotations.to(wide))
    buckets = torch.zeros(rotated.shape[:-1], dtype=torch.int64, device=vectors.device)
    scale = 1
    for factor, part in zip(factors, rotated.split([f // 2 for f in factors], -1), strict=True):
        buckets = buckets + scale * torch.cat((part, -part), -1).argmax(-1)
        scale *= factor
    return buckets


def lsh_attention(
    qk: Tensor,
    v: Tensor,
    buckets: Tensor,
    *,
    chunk_size: int,
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    released: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Each token attends to tokens that stand near it when tokens are sorted by bucket.

    In each round tokens are sorted by (bucket, position) and cut into chunks; a query sees its
    chunk and the one before. Rounds are joined by the log-sum-exp of their scores. A key that
    several rounds find counts once. Keys are queries of unit length, and a token sees itself only
    where it sees nothing else.

    Borders of chunks depend on later tokens. The causal form therefore has no borders: a query
    sees the last `chunk_size` earlier tokens of its bucket.

    Args:
        qk: (B, H, N, D) vectors that are queries and, scaled, keys.
        v: (B, H, N, D) values.
        buckets: (B, H, rounds, N) int64, see `lsh_buckets`.
        chunk_size: tokens m in a chunk; the last chunk may be shorter.
        key_padding_mask: (B, N) bool, True = padding; sorted last and never seen.
        causal: a query sees its own and earlier positions only.
        released: as in well-known code: the first chunk of a round looks back on the last chunk
            of the round before it, the very first on the very last, padding included; keys that
            several rounds find count as often. One round where one chunk holds all tokens.
        dropout: probability with which attention weights are dropped; 0 in evaluation.

    Returns:
        (B, H, N, D), finite at every position; values at padded positions are undefined.

    Source: Kitaev et al. 2020, "Reformer: The Efficient Transformer", equations (3) to (6) and
    appendix A for the rounds.
    """
    # Released code joins the rounds into a ring: there a block of padding more would be seen.
    length = as_constant(qk.shape[2]) if released else qk.shape[2]
    chunk = block_of(chunk_size, length)
    look_back = not statically_known_true(length <= chunk)
    if released and not look_back:
        buckets = buckets[:, :, :1]
    qk, v, buckets, valid = _pad(qk, v, buckets, key_padding_mask, chunk)
    order = stable_order(buckets, -1)
    rank = order.argsort(dim=-1)
    label, reach = _labels(rank, buckets, chunk, causal)

    def chunks(t: Tensor) -> Tensor:
        """(B, H, rounds or 1, N, ...) sorted by bucket: (B, H, rounds, chunks, m, ...)."""
        shape = (*order.shape, *t.shape[4:])
        index = order.view(*order.shape, *(1,) * (t.dim() - 4)).expand(shape)
        return torch.unflatten(t.expand(shape).gather(3, index), 3, (-1, chunk))

    def keys(t: Tensor) -> Tensor:
        return _with_previous(t, around=released) if look_back else t

    queries = chunks(qk.unsqueeze(2))
    scores = queries @ keys(chunks(_unit_length(qk).unsqueeze(2))).mT
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    position = order.unflatten(3, (-1, chunk))
    key_position = keys(position + 1) - 1  # -1 where there is no chunk before
    own = position.unsqueeze(-1) == key_position.unsqueeze(-2)
    seen = keys(chunks(valid[:, None, None, :])).unsqueeze(-2)
    if not released:
        found = _rounds_that_find(label, reach, chunks, keys)
        # Only the own round decides what is seen; all of them how often it is found.
        seen = seen & found[0]
        scores.sub_(found[1].to(scores.dtype).log_())
    # In place: on long sequences, fresh memory for tensors of this size costs more than the sums.
    scores.masked_fill_(~seen, -math.inf).masked_fill_(own, _SELF_SCORE)
    weights, total = _softmax_and_total(scores)
    weights = drop(weights, dropout).to(v.dtype)
    y = (weights @ keys(chunks(v.unsqueeze(2)))).flatten(3, 4)
    y = y.gather(3, rank.unsqueeze(-1).expand_as(y))
    total = total.flatten(3, 5).gather(3, rank)
    y = (y * total.softmax(2).to(y.dtype).unsqueeze(-1)).sum(2)
    return take_first(y, length, 2)


def _softmax_and_total(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the last dimension, and the logsumexp, (..., 1).

    Where many exponentials come to 0, those of torch's softmax take a tenth of the time of its
    exp and logsumexp on some processors.
    """
    weights = scores.softmax(-1)
    largest, at = scores.max(-1, keepdim=True)
    return weights, largest - weights.gather(-1, at).log()


_PADDING_BUCKET = 2**31


def _pad(
    qk: Tensor, v: Tensor, buckets: Tensor, key_padding_mask: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All to a multiple of the chunk; padding in the last bucket; (B, N) valid positions."""
    extra = missing_tokens(chunk, qk.shape[2])
    if key_padding_mask is None:
        key_padding_mask = torch.zeros(qk.shape[0], qk.shape[2], dtype=torch.bool, device=qk.device)
    padded = F.pad(key_padding_mask, (0, extra), value=True)
    qk, v = F.pad(qk, (0, 0, 0, extra)), F.pad(v, (0, 0, 0, extra))
    buckets = F.pad(buckets, (0, extra)).masked_fill(padded[:, None, None, :], _PADDING_BUCKET)
    return qk, v, buckets, ~padded


def _unit_length(qk: Tensor) -> Tensor:
    """Keys: the vectors scaled to length 1."""
    wide = qk.to(torch.promote_types(qk.dtype, torch.float32))
    square = wide.square().mean(-1, keepdim=True) + _LENGTH_EPSILON
    return (wide * torch.rsqrt(square * qk.shape[-1])).to(qk.dtype)


def _labels(rank: Tensor, buckets: Tensor, chunk: int, causal: bool) -> tuple[Tensor, int]:
    """Numbers L per token, and w: a query sees a key when 0 <= L(query) - L(key) <= w.

    The number of the chunk, seen with the one before; if causal, the rank in the sorted order,
    spread so that buckets lie too far apart to see each other.
    """
    if not causal:
        return rank.div(chunk, rounding_mode="floor"), 1
    return rank + buckets * (rank.shape[-1] + chunk + 1), chunk


def _with_previous(x: Tensor, *, around: bool) -> Tensor:
    """(B, H, rounds, chunks, m, ...): each chunk with the one before, (..., chunks, 2 m, ...).

    Zeros stand before the first chunk of a round; `around`, what stands last before it when all
    rounds form one ring.
    """
    if around:
        previous = x.flatten(2, 3).roll(1, 2).unflatten(2, x.shape[2:4])
    else:
        previous = F.pad(x, (0, 0) * (x.dim() - 4) + (1, 0))[:, :, :, :-1]
    return torch.cat((previous, x), 4)


def _rounds_that_find(
    label: Tensor,
    reach: int,
    chunks: Callable[[Tensor], Tensor],
    keys: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """For the pairs (..., m, keys) of each round: whether it finds them, and how many rounds do."""
    own, count = [], torch.zeros((), dtype=torch.int8, device=label.device)
    for index in range(label.shape[2]):
        # The labels of this round, in the order of every round.
        query = chunks(label[:, :, index : index + 1])
        key = keys(query).unsqueeze(-2)
        query = query.unsqueeze(-1)
        finds = (key <= query) & (key >= query - reach)
        own.append(finds[:, :, index])
        count = count + finds.to(torch.int8)
    return torch.stack(own, 2), count
