"""Reformer: attention within buckets of a locality-sensitive hash."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_integers
from rifflemix.compat import as_constant, stable_order, take_first
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.multi_head import short_block_size
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.token_groups import group_size, is_single_group, missing_tokens
from rifflemix.ops.dropout.backends import dropout as drop

COMPAT = ("none", "hf")
_DEFAULT_BUCKETS = 64
_MOST_UNFACTORED = 128
# Score of a token with itself. It is only relevant if the token sees no other token.
_SELF_SCORE = -1e5
_LENGTH_EPSILON = 1e-6


class Reformer(TokenMixer):
    """LSH attention: each query attends to tokens near it in the order of a random hash.

    Queries and keys share one projection. The rotations of the hash are drawn once, from
    `hash_seed` and `layer_index`, and saved with the weights. The paper draws new rotations at
    every call.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the attention
            weights. With `causal=True` a query sees the last `chunk_size` earlier tokens of its
            bucket. The paper's chunks are not used, because their borders depend on later tokens.
        num_hashes: rounds of hashing, at most 127.
        num_buckets: an even number, or several even factors that are hashed separately. Default:
            the power of two at or below 2 max_length / chunk_size, in two factors if above 128.
            Without `max_length`: 64.
        chunk_size: tokens in a chunk. A query sees its own and the previous chunk. Default: 64, or
            an eighth of `max_length` if that is less.
        compat: "none" follows the paper's equations. "hf" follows the well-known PyTorch code:
            chunks look back in a ring through all rounds, including padding, and a key found in
            several rounds counts several times. "hf" does not support `causal=True` because that
            code leaks later tokens.
        hash_seed: seed of the rotations.
        bias: add a bias to the query-key and value projections.
        out_bias: add a bias to the output projection.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: a number out of range, or compat="hf" with causal=True.

    Source: Kitaev et al. 2020, "Reformer: The Efficient Transformer", section 2.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("reformer", 64, num_heads=4, max_length=256, num_hashes=2)
        >>> mixer(torch.randn(2, 256, 64)).shape
        torch.Size([2, 256, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="reformer",
        title="Reformer (LSH attention)",
        paper="Kitaev et al. 2020, Reformer: The Efficient Transformer",
        equations="(3)-(6), appendix A",
        complexity="O(N log N + R N m C), R rounds, chunks of m",
        cost_exponent=1.0,
        causal=True,
        thread_sums="the softmax over the rounds of hashing, at some lengths",
    )
    rotations: Tensor

    def __init__(
        self,
        dim: int,
        *,
        num_hashes: int = 2,
        num_buckets: int | Sequence[int] | None = None,
        chunk_size: int | None = None,
        compat: str = "none",
        hash_seed: int = 0,
        bias: bool = False,
        out_bias: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.num_hashes = check_integer("num_hashes", num_hashes, 1, 127)
        if chunk_size is None:
            chunk_size = short_block_size(self.max_length)
        self.chunk_size = check_integer("chunk_size", chunk_size, 1)
        self.bucket_factors = self._check_buckets(num_buckets)
        check_choice("compat", compat, COMPAT)
        if compat == "hf" and self.causal:
            raise bad_argument("compat", "'none' when causal=True", repr(compat))
        self.compat = compat
        self.qk = nn.Linear(self.dim, self.dim, bias=bias)
        self.value = nn.Linear(self.dim, self.dim, bias=bias)
        self.proj = nn.Linear(self.dim, self.dim, bias=out_bias)
        self.register_buffer("rotations", self._draw_rotations(hash_seed))

    def _check_buckets(self, num_buckets: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return the factors of the number of buckets."""
        if num_buckets is None:
            return default_buckets(self.max_length, self.chunk_size)
        single = isinstance(num_buckets, int)
        factors = check_integers("num_buckets", [num_buckets] if single else num_buckets, 2)
        if not factors or any(factor % 2 for factor in factors):
            raise bad_argument("num_buckets", "an even number or several even numbers", num_buckets)
        return factors

    def _draw_rotations(self, seed: int) -> Tensor:
        """Draw normal numbers (H, D, rounds, half the sum of the factors)."""
        seed = check_integer("hash_seed", seed, 0, 2**32 - 1)
        generator = torch.Generator().manual_seed(seed * 2**31 + self.layer_index)
        columns = sum(self.bucket_factors) // 2
        shape = (self.num_heads, self.dim // self.num_heads, self.num_hashes, columns)
        # The generator only draws on the CPU, even if torch's default device is another one.
        return torch.empty(shape).copy_(torch.randn(shape, generator=generator, device="cpu"))

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        qk, v = (self._split(t) for t in (self.qk(x), self.value(x)))
        y = lsh_attention(
            qk,
            v,
            lsh_buckets(qk, self.rotations, self.bucket_factors),
            chunk_size=self.chunk_size,
            key_padding_mask=key_padding_mask,
            causal=self.causal,
            released=self.compat == "hf",
            dropout=self.dropout_now,
        )
        return self.proj(y.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1))
        return heads.transpose(1, 2)

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, num_hashes={self.num_hashes}, "
            f"num_buckets={self.bucket_factors}, chunk_size={self.chunk_size}"
        )


def default_buckets(max_length: int | None, chunk_size: int) -> tuple[int, ...]:
    """Choose the buckets: half a chunk of tokens each.

    Above 128 buckets, two factors need fewer hash columns.
    """
    if max_length is None:
        return (_DEFAULT_BUCKETS,)
    bits = max(1, (2 * max_length // chunk_size).bit_length() - 1)
    if 2**bits <= _MOST_UNFACTORED:
        return (2**bits,)
    return (2 ** (bits // 2), 2 ** (bits - bits // 2))


def lsh_buckets(vectors: Tensor, rotations: Tensor, factors: Sequence[int]) -> Tensor:
    """Compute the bucket of each vector: the largest coordinate of [x R; -x R].

    With several factors, each factor gives one digit of the bucket number, from its own columns.

    Args:
        vectors: (B, H, N, D).
        rotations: (H, D, rounds, half the sum of the factors), random normal.
        factors: even numbers. Their product is the number of buckets.

    Returns:
        (B, H, rounds, N) int64, without gradient.

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
    """Attend to tokens with near ranks after sorting by bucket.

    In each round, tokens are sorted by (bucket, position) and split into chunks. A query sees its
    own chunk and the chunk before. The log-sum-exp of the scores weights the rounds. A key in
    several rounds counts once. Keys are queries of unit length. A token sees itself only if it
    sees no other token.

    Borders of chunks depend on later tokens, so the causal variant has no borders. There, a query
    sees the last `chunk_size` earlier tokens of its bucket.

    Args:
        qk: (B, H, N, D) queries. The keys are these vectors, scaled to length 1.
        v: (B, H, N, D) values.
        buckets: (B, H, rounds, N) int64, see `lsh_buckets`.
        chunk_size: tokens m in a chunk; the last chunk may be shorter.
        key_padding_mask: (B, N) bool, True = padding. It is sorted last and hidden.
        causal: a query ignores later positions.
        released: follow well-known code. The first chunk of a round sees the last chunk of the
            round before, and the first chunk of all rounds sees the last chunk of all rounds,
            padding included. A key in several rounds counts several times. If one chunk contains
            all tokens, there is only one round.
        dropout: probability of dropping an attention weight; 0 in evaluation.

    Returns:
        (B, H, N, D), finite everywhere. Values at padded positions are undefined.

    Source: Kitaev et al. 2020, "Reformer: The Efficient Transformer", equations (3) to (6) and
    appendix A for the rounds.
    """
    # The ring of rounds in released code would see an extra chunk of padding.
    length = as_constant(qk.shape[2]) if released else qk.shape[2]
    chunk = group_size(chunk_size, length)
    look_back = not is_single_group(chunk, length)
    if released and not look_back:
        buckets = buckets[:, :, :1]
    qk, v, buckets, valid = _pad(qk, v, buckets, key_padding_mask, chunk)
    order = stable_order(buckets, -1)
    rank = order.argsort(dim=-1)
    label, reach = _labels(rank, buckets, chunk, causal)

    def chunks(t: Tensor) -> Tensor:
        """Sort (B, H, rounds or 1, N, ...) by bucket into (B, H, rounds, chunks, m, ...)."""
        shape = (*order.shape, *t.shape[4:])
        index = order.view(*order.shape, *(1,) * (t.dim() - 4)).expand(shape)
        return torch.unflatten(t.expand(shape).gather(3, index), 3, (-1, chunk))

    def keys(t: Tensor) -> Tensor:
        return _with_previous(t, around=released) if look_back else t

    queries = chunks(qk.unsqueeze(2))
    scores = queries @ keys(chunks(_unit_length(qk).unsqueeze(2))).mT
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    position = order.unflatten(3, (-1, chunk))
    key_position = keys(position + 1) - 1  # -1 if there is no chunk before
    own = position.unsqueeze(-1) == key_position.unsqueeze(-2)
    seen = keys(chunks(valid[:, None, None, :])).unsqueeze(-2)
    if not released:
        found = _rounds_that_find(label, reach, chunks, keys)
        # A key is visible in its own round only, but is counted over all rounds.
        seen = seen & found[0]
        scores.sub_(found[1].to(scores.dtype).log_())
    # In place: on long sequences, allocating these tensors takes longer than the arithmetic.
    scores.masked_fill_(~seen, -math.inf).masked_fill_(own, _SELF_SCORE)
    weights, total = _softmax_and_total(scores)
    weights = drop(weights, dropout).to(v.dtype)
    y = (weights @ keys(chunks(v.unsqueeze(2)))).flatten(3, 4)
    y = y.gather(3, rank.unsqueeze(-1).expand_as(y))
    total = total.flatten(3, 5).gather(3, rank)
    y = (y * total.softmax(2).to(y.dtype).unsqueeze(-1)).sum(2)
    return take_first(y, length, 2)


def _softmax_and_total(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the softmax over the last dimension, and its log-sum-exp (..., 1).

    If many exponentials are 0, torch's softmax needs a tenth of the time of its exp and logsumexp
    on some processors.
    """
    weights = scores.softmax(-1)
    largest, at = scores.max(-1, keepdim=True)
    return weights, largest - weights.gather(-1, at).log()


_PADDING_BUCKET = 2**31


def _pad(
    qk: Tensor, v: Tensor, buckets: Tensor, key_padding_mask: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pad all tensors to full chunks, and return the valid positions (B, N) too."""
    extra = missing_tokens(chunk, qk.shape[2])
    if key_padding_mask is None:
        key_padding_mask = torch.zeros(qk.shape[0], qk.shape[2], dtype=torch.bool, device=qk.device)
    padded = F.pad(key_padding_mask, (0, extra), value=True)
    qk, v = F.pad(qk, (0, 0, 0, extra)), F.pad(v, (0, 0, 0, extra))
    buckets = F.pad(buckets, (0, extra)).masked_fill(padded[:, None, None, :], _PADDING_BUCKET)
    return qk, v, buckets, ~padded


def _unit_length(qk: Tensor) -> Tensor:
    """Scale the vectors to length 1."""
    wide = qk.to(torch.promote_types(qk.dtype, torch.float32))
    square = wide.square().mean(-1, keepdim=True) + _LENGTH_EPSILON
    return (wide * torch.rsqrt(square * qk.shape[-1])).to(qk.dtype)


def _labels(rank: Tensor, buckets: Tensor, chunk: int, causal: bool) -> tuple[Tensor, int]:
    """Compute labels L and a reach w: a query sees a key if 0 <= L(query) - L(key) <= w.

    The label is the number of the chunk. If causal, it is the rank in the sorted order, with gaps
    of more than w between buckets.
    """
    if not causal:
        return rank.div(chunk, rounding_mode="floor"), 1
    return rank + buckets * (rank.shape[-1] + chunk + 1), chunk


def _with_previous(x: Tensor, *, around: bool) -> Tensor:
    """Concatenate each chunk of (B, H, rounds, chunks, m, ...) with the chunk before.

    The result is (..., chunks, 2 m, ...). The first chunk of a round gets zeros. With `around`, all
    rounds form a ring, and the first chunk gets the last chunk of the round before.
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
    """Return the visible pairs (..., m, keys) of each round, and the rounds of each pair."""
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
