"""Blocks of tokens: pooling, scores between them, sorting them, what padding becomes."""

from __future__ import annotations

from torch import Tensor

from rifflemix.checks import (
    check_bool,
    check_divides,
    check_floating,
    check_integer,
    check_like,
    check_padding_mask,
    check_tokens,
)
from rifflemix.errors import bad_argument, check_choice
from rifflemix.ops.sinkhorn import unchecked

PADDING_RULES = ("majority", "argmax")
_HEADS = "(B, H, N, D)"


def pool_blocks(
    x: Tensor,
    block_size: int,
    *,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """One vector for each block of tokens: what a sorting network reads.

    Args:
        x: (B, N, C) tokens.
        block_size: tokens b in a block, a divisor of N.
        causal: sum all tokens up to the first of block u, and not those of block u: a later
            token of the block would leak.
        key_padding_mask: (B, N) bool, True = padding, which adds nothing.
        backend: "auto", "reference" or "eager".

    Returns:
        (B, N / b, C).

    Raises:
        InputError: wrong shape, dtype or device, or b that does not divide N.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", equations (2) and (5).
    """
    check_tokens("x", x)
    block_size = check_divides("block_size", block_size, x.shape[1], "the number of tokens")
    check_padding_mask(key_padding_mask, x)
    check_bool("causal", causal)
    return unchecked.pool_blocks(x, block_size, causal, key_padding_mask, backend)


def block_scores(
    q: Tensor,
    k: Tensor,
    block_size: int,
    *,
    causal: bool = False,
    shared: bool = False,
    key_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Scores of an attention sorting network: pooled queries times pooled keys over sqrt(D).

    Means over the block are compared. With `causal=True` destination u is the running mean of
    the queries up to the first token of block u, and source v the sum over block v of the
    running means of the keys; use only entries v < u.

    Args:
        q: (B, H, N, D) queries.
        k: (B, H, N, D) keys.
        block_size: tokens b in a block, a divisor of N.
        causal: pool the past only.
        shared: one destination for all queries (their mean); not with `causal`.
        key_padding_mask: (B, N) bool, True = padding, left out of every mean.
        backend: "auto", "reference" or "eager".

    Returns:
        (B, H, N / b, N / b), rows destinations; (B, H, 1, N / b) if `shared`.

    Raises:
        InputError: wrong shape, dtype or device, or b that does not divide N.

    Source: the attention sorting network of the sinkhorn-transformer package.
    """
    check_tokens("q", q, rank=4, layout=_HEADS)
    check_tokens("k", k, rank=4, layout=_HEADS)
    if k.shape != q.shape:
        raise bad_argument("k", f"the shape of q, {tuple(q.shape)}", tuple(k.shape))
    check_like("k", k, q, "q")
    block_size = check_divides("block_size", block_size, q.shape[2], "the number of tokens")
    check_padding_mask(key_padding_mask, q, token_dim=2)
    check_bool("causal", causal)
    if check_bool("shared", shared) and causal:
        raise bad_argument("shared", "False with causal=True", True)
    return unchecked.block_scores(q, k, block_size, causal, shared, key_padding_mask, backend)


def sort_blocks(blocks: Tensor, sort: Tensor, *, backend: str = "auto") -> Tensor:
    """Sorted block u = sum over v of sort[u, v] times block v, position by position.

    Args:
        blocks: (..., n, b, D).
        sort: (..., R, n), rows destinations, same leading axes.
        backend: "auto", "reference" or "eager".

    Returns:
        (..., R, b, D).

    Raises:
        InputError: shapes, dtypes or devices that do not fit.

    Source: Tay et al. 2020, section 3.1.2.
    """
    check_floating("blocks", blocks, "(..., n, b, D)")
    check_floating("sort", sort, "(..., R, n)")
    if blocks.dim() < 3 or sort.dim() != blocks.dim() - 1:
        raise bad_argument("blocks", "shape (..., n, b, D)", tuple(blocks.shape))
    leading = blocks.shape[:-3]
    if sort.shape[:-2] != leading or sort.shape[-1] != blocks.shape[-3]:
        expected = f"shape {(*leading, 'R', blocks.shape[-3])}"
        raise bad_argument("sort", expected, tuple(sort.shape))
    check_like("sort", sort, blocks, "blocks")
    return unchecked.sort_blocks(blocks, sort, backend)


def sorted_padding_mask(
    sort: Tensor,
    block_size: int,
    key_padding_mask: Tensor | None = None,
    *,
    rule: str = "majority",
    num_null: int = 0,
    backend: str = "auto",
) -> Tensor:
    """The positions of the sorted blocks that must not be attended to.

    Args:
        sort: (B, H, R, num_null + n) sort matrix, rows destinations.
        block_size: tokens b in a block.
        key_padding_mask: (B, n * b) bool, True = padding; None where there is none.
        rule: "majority" hides a position where less than half of the row's weight comes from valid
            tokens (for rows that sum to one: psi(mask) < 0.5); "argmax" takes the mask of the
            block of highest weight.
        num_null: first columns that stand for null blocks, always valid.
        backend: "auto", "reference" or "eager".

    Returns:
        (B, H, R, b) bool, True = hidden; rows of zero weight are hidden whole.

    Raises:
        InputError: an unknown rule, or shapes that do not fit.

    Source: Tay et al. 2020 leaves masks open; the readings are those of the released ports.
    """
    check_tokens("sort", sort, rank=4, layout="(B, H, R, n)")
    check_choice("rule", rule, PADDING_RULES)
    block_size = check_integer("block_size", block_size, 1)
    num_null = check_integer("num_null", num_null)
    if not 0 <= num_null < sort.shape[-1]:
        raise bad_argument("num_null", f"0 to {sort.shape[-1] - 1}", num_null)
    tokens = (sort.shape[-1] - num_null) * block_size
    check_padding_mask(key_padding_mask, sort[:, 0, 0, :1].expand(-1, tokens))
    return unchecked.sorted_padding_mask(
        sort, block_size, key_padding_mask, rule, num_null, backend
    )
