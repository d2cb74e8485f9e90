"""Operations on blocks of tokens: pooling, scores, sorting, and padding masks."""

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
from rifflemix.ops.sinkhorn import backends

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
    """Sum the tokens of each block, as input of a sorting network.

    Args:
        x: (B, N, C) tokens.
        block_size: number of tokens b in a block, a divisor of N.
        causal: for block u, sum all tokens up to and including the first token of block u.
            Including the rest of block u would leak later tokens.
        key_padding_mask: (B, N) bool, True = padding. Padding is not included in the sums.
        backend: "auto", "reference" or "eager".

    Returns:
        (B, N / b, C) sums, one vector for each block.

    Raises:
        InputError: a wrong shape, dtype or device, or b does not divide N.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", equations (2) and (5).

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.arange(6.0).reshape(1, 6, 1)
        >>> rm.ops.pool_blocks(x, block_size=3).flatten().tolist()
        [3.0, 12.0]
        >>> rm.ops.pool_blocks(x, block_size=3, causal=True).flatten().tolist()
        [0.0, 6.0]
    """
    check_tokens("x", x)
    block_size = check_divides("block_size", block_size, x.shape[1], "the number of tokens")
    check_padding_mask(key_padding_mask, x)
    check_bool("causal", causal)
    module = backends.BLOCKS.pick(backend)
    return module.pool_blocks(x, block_size, causal, key_padding_mask)


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
    """Score pairs of blocks with an attention sorting network.

    The scores are the scaled dot products of pooled queries and pooled keys, divided by sqrt(D).
    Pooling is the mean over a block. With `causal=True`, destination u is the running mean of the
    queries up to the first token of block u. Source v is then the sum over block v of the running
    means of the keys. Use only entries v < u.

    Args:
        q: (B, H, N, D) queries.
        k: (B, H, N, D) keys.
        block_size: number of tokens b in a block, a divisor of N.
        causal: pool only past tokens.
        shared: use the mean of all queries as the only destination. Not supported with `causal`.
        key_padding_mask: (B, N) bool, True = padding. Padding is not included in the means.
        backend: "auto", "reference" or "eager".

    Returns:
        (B, H, N / b, N / b) scores, or (B, H, 1, N / b) if `shared`. Rows are destinations.

    Raises:
        InputError: a wrong shape, dtype or device, or b does not divide N.

    Source: the attention sorting network of the sinkhorn-transformer package.

    Example:
        >>> import torch, rifflemix as rm
        >>> q, k = torch.randn(2, 1, 4, 64, 8)
        >>> rm.ops.block_scores(q, k, block_size=16).shape
        torch.Size([1, 4, 4, 4])
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
    module = backends.BLOCKS.pick(backend)
    return module.block_scores(q, k, block_size, causal, shared, key_padding_mask)


def sort_blocks(blocks: Tensor, sort: Tensor, *, backend: str = "auto") -> Tensor:
    """Sort blocks of tokens with a sort matrix.

    Sorted block u is the sum over v of sort[u, v] times block v, position by position.

    Args:
        blocks: (..., n, b, D) blocks.
        sort: (..., R, n) sort matrix with the same leading dimensions; rows are destinations.
        backend: "auto", "reference" or "eager".

    Returns:
        (..., R, b, D) sorted blocks.

    Raises:
        InputError: incompatible shapes, dtypes or devices.

    Source: Tay et al. 2020, section 3.1.2.

    Example:
        >>> import torch, rifflemix as rm
        >>> blocks = torch.arange(4.0).reshape(2, 2, 1)
        >>> rm.ops.sort_blocks(blocks, torch.eye(2).flip(0)).flatten().tolist()
        [2.0, 3.0, 0.0, 1.0]
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
    y: Tensor = backends.BLOCKS.pick(backend).sort_blocks(blocks, sort)
    return y.to(blocks.dtype)  # autocast may change the dtype


def sorted_padding_mask(
    sort: Tensor,
    block_size: int,
    key_padding_mask: Tensor | None = None,
    *,
    rule: str = "majority",
    num_null: int = 0,
    backend: str = "auto",
) -> Tensor:
    """Compute the attention mask of sorted blocks.

    Args:
        sort: (B, H, R, num_null + n) sort matrix; rows are destinations.
        block_size: number of tokens b in a block.
        key_padding_mask: (B, n * b) bool, True = padding; None if there is no padding.
        rule: "majority" hides a position if less than half of the row's weight comes from valid
            tokens. For rows that sum to one, this is psi(mask) < 0.5. "argmax" uses the mask of
            the block with the highest weight.
        num_null: number of leading columns for null blocks. Null blocks are always valid.
        backend: "auto", "reference" or "eager".

    Returns:
        (B, H, R, b) bool mask, True = hidden. All positions of zero rows are hidden.

    Raises:
        InputError: an unknown rule, or incompatible shapes.

    Source: Tay et al. 2020 does not specify masks. The rules come from the released ports.

    Example:
        >>> import torch, rifflemix as rm
        >>> sort = torch.eye(2).flip(0).reshape(1, 1, 2, 2)
        >>> padding = torch.tensor([[False, False, False, True]])
        >>> rm.ops.sorted_padding_mask(sort, block_size=2, key_padding_mask=padding)[0, 0].tolist()
        [[False, True], [False, False]]
    """
    check_tokens("sort", sort, rank=4, layout="(B, H, R, n)")
    check_choice("rule", rule, PADDING_RULES)
    block_size = check_integer("block_size", block_size, 1)
    num_null = check_integer("num_null", num_null)
    if not 0 <= num_null < sort.shape[-1]:
        raise bad_argument("num_null", f"0 to {sort.shape[-1] - 1}", num_null)
    tokens = (sort.shape[-1] - num_null) * block_size
    check_padding_mask(key_padding_mask, sort[:, 0, 0, :1].expand(-1, tokens))
    module = backends.BLOCKS.pick(backend)
    return module.sorted_padding_mask(sort, block_size, key_padding_mask, rule, num_null)
