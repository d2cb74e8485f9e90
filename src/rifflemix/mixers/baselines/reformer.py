"""Reformer: attention within buckets of a locality-sensitive hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_integers
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.lsh import lsh_attention, lsh_buckets
from rifflemix.mixers._attention.multi_head import short_block_size
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard

COMPAT = ("none", "hf")
_DEFAULT_BUCKETS = 64
_MOST_UNFACTORED = 128


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
        """Hash, attend within chunks of tokens sorted by bucket, and join the rounds."""
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
