"""Attention over local and sorted blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.checks import (
    check_divides,
    check_floating,
    check_integer,
    check_like,
    check_padding_mask,
    check_probability,
    check_tokens,
    shown,
)
from rifflemix.errors import bad_argument, check_choice
from rifflemix.ops.dispatch import PLAIN
from rifflemix.ops.sinkhorn import backends
from rifflemix.ops.sinkhorn.blocks import PADDING_RULES
from rifflemix.ops.sinkhorn.options import COMBINE, SinkhornOptions


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sorted_k: Tensor,
    sorted_v: Tensor,
    *,
    combine: str = "concat",
    hidden: Tensor | None = None,
    sorted_hidden: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Attend from each block of queries to local and sorted keys.

    `combine` selects how local and sorted keys are combined:

    - "concat": one softmax over the concatenated sorted and local keys.
    - "sum_logits": softmax(Q psi(K)^T + Q K^T) psi(V), the formula in the paper. Local keys only
      shift the logits, and local values are not used. A hidden local key does not shift a logit.
    - "sum_out": the sum of two attention outputs, with separate softmaxes over the sorted and the
      local keys.

    Logits are divided by sqrt(D). The output of a query without visible keys is zero.

    Args:
        q: (B, H, n, b, D) queries in blocks.
        k: (B, H, n, b, D) local keys.
        v: (B, H, n, b, D) local values.
        sorted_k: (B, H, n, s, D) sorted keys of each block; s = b for "sum_logits".
        sorted_v: (B, H, n, s, D) sorted values.
        combine: "concat", "sum_logits" or "sum_out".
        hidden: bool mask that broadcasts to (B, H, n, b, b), True = the query ignores the local
            key.
        sorted_hidden: bool mask that broadcasts to (B, H, n, b, s), True = the query ignores the
            sorted key.
        dropout_p: probability of dropping an attention weight.
        backend: "auto", "reference" (no dropout) or "eager".

    Returns:
        (B, H, n, b, D) outputs.

    Raises:
        InputError: an unknown name, or incompatible shapes, dtypes or devices.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", section 3.2.

    Example:
        >>> import torch, rifflemix as rm
        >>> q, k, v = torch.randn(3, 1, 2, 4, 16, 8)
        >>> sorted_k, sorted_v = k.roll(1, dims=2), v.roll(1, dims=2)
        >>> rm.ops.block_attention(q, k, v, sorted_k, sorted_v).shape
        torch.Size([1, 2, 4, 16, 8])
    """
    check_choice("combine", combine, COMBINE)
    layout = "(B, H, n, b, D)"
    check_tokens("q", q, rank=5, layout=layout)
    for name, tensor in (("k", k), ("v", v)):
        _check_operand(name, tensor, tuple(q.shape), q)
    check_tokens("sorted_k", sorted_k, rank=5, layout="(B, H, n, s, D)")
    size = q.shape[3] if combine == "sum_logits" else sorted_k.shape[3]
    for name, tensor in (("sorted_k", sorted_k), ("sorted_v", sorted_v)):
        _check_operand(name, tensor, (*q.shape[:3], size, q.shape[4]), q)
    _check_hidden("hidden", hidden, (*q.shape[:4], q.shape[3]), q)
    _check_hidden("sorted_hidden", sorted_hidden, (*q.shape[:4], size), q)
    check_probability("dropout_p", dropout_p)
    available = backends.WITH_DROPOUT if dropout_p else PLAIN
    y: Tensor = backends.ATTENTION.pick(backend, available).block_attention(
        q, k, v, sorted_k, sorted_v, combine, hidden, sorted_hidden, dropout_p
    )
    return y.to(q.dtype)  # autocast may change the dtype


def sinkhorn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    *,
    combine: str = "concat",
    sortcut: int = 0,
    sortcut_local: bool = False,
    mixture: bool = False,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    null_kv: tuple[Tensor, Tensor] | None = None,
    padding_rule: str = "majority",
    rotation: int = 0,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Compute Sparse Sinkhorn attention for a given sort matrix.

    `sort` sorts the blocks of keys and values. Each block of queries then attends to its sorted
    blocks and to its own block; `combine` selects how (see `block_attention`). There is no N x N
    matrix unless `mixture` is set.

    Args:
        q: (B, H, N, D) queries. With SortCut and without a local term, the number of queries may
            differ from N.
        k: (B, H, N, D) keys.
        v: (B, H, N, D) values.
        sort: (B, H, R, n) sort matrix; rows are destinations, columns are sources, n = N / b.
            R = n * r: rows u*r .. u*r+r-1 define the sorted blocks of query block u (r = 1 for
            Sinkhorn, k for top-k). With `null_kv`, the matrix has extra leading columns for the
            null blocks. With `causal=True`, the rows of block u must be zero at sources v >= u,
            as in the results of `sinkhorn` and `top_k_blocks`. A zero row is hidden if `causal` or
            a mask is given. Otherwise, it is a block of zeros.
        block_size: number of tokens b in a block, a divisor of N.
        combine: "concat", "sum_logits" or "sum_out".
        sortcut: number m of leading rows of `sort` that all queries share (SortCut). There is
            then no local term. 0 disables SortCut.
        sortcut_local: with SortCut, each query also attends to its own block.
        mixture: add full softmax attention with the same q, k, v (quadratic).
        causal: a query ignores later tokens of the same block. Not supported with SortCut.
        key_padding_mask: (B, N) bool, True = padding.
        null_kv: (H, D) null key and (H, D) null value, repeated to fill null blocks.
        padding_rule: see `sorted_padding_mask`. "majority" also excludes padding from the sums.
            "argmax" includes the values at padding, like the port that it reproduces.
        rotation: index of the token at which the first block starts (causal only). Earlier tokens
            attend only to each other. `sort` must belong to the sequence rolled left by
            `rotation`.
        dropout_p: probability of dropping an attention weight.
        backend: "auto", "reference" (no dropout), "eager", "cpu" or "triton". The last two need
            "concat" without SortCut, null blocks and rotation. "triton" needs a GPU and supports
            up to 128 blocks of 128 tokens. Its limits in float32 are 64 blocks of 64 tokens, or
            64 blocks of 128 tokens if D <= 32.

    Returns:
        (B, H, N, D) outputs; zero for a query without visible keys.

    Raises:
        InputError: an unknown name, incompatible shapes, dtypes or devices, or options that
            exclude each other.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", sections 3.2 to 3.4.

    Example:
        >>> import torch, rifflemix as rm
        >>> q, k, v = torch.randn(3, 1, 4, 64, 8)
        >>> sort = rm.ops.sinkhorn(rm.ops.block_scores(q, k, block_size=16), num_iterations=8)
        >>> rm.ops.sinkhorn_attention(q, k, v, sort, block_size=16).shape
        torch.Size([1, 4, 64, 8])
    """
    check_choice("padding_rule", padding_rule, PADDING_RULES)
    shared = bool(sortcut) and not (sortcut_local or mixture)
    _check_heads(q, k, v, key_padding_mask, any_length=shared)
    block_size = check_divides("block_size", block_size, k.shape[2], "the number of tokens")
    _check_sort(sort, q, k.shape[2] // block_size, bool(sortcut), null_kv)
    options = SinkhornOptions(
        causal=causal,
        top_k=sort.shape[2] * block_size // k.shape[2],
        combine=combine,
        sortcut=sortcut,
        sortcut_local=sortcut_local,
        mixture=mixture,
    ).checked_attention(sort.shape[2])
    rotation = check_integer("rotation", rotation)
    if rotation and not (causal and 0 < rotation < block_size):
        raise bad_argument("rotation", f"0, or with causal=True 1 to {block_size - 1}", rotation)
    dropout_p = check_probability("dropout_p", dropout_p)  # kernels differ for 0 and 0.0
    return backends.sinkhorn_attention(
        q,
        k,
        v,
        sort,
        block_size,
        combine=combine,
        sortcut=options.sortcut,
        sortcut_local=sortcut_local,
        mixture=mixture,
        causal=causal,
        key_padding_mask=key_padding_mask,
        null_kv=null_kv,
        padding_rule=padding_rule,
        rotation=rotation,
        dropout_p=dropout_p,
        backend=backend,
    )


def _check_operand(name: str, tensor: Tensor, expected: tuple[int, ...], q: Tensor) -> None:
    check_floating(name, tensor, expected)
    if tuple(tensor.shape) != expected:
        raise bad_argument(name, f"shape {expected}", tuple(tensor.shape))
    check_like(name, tensor, q, "q")


def _check_hidden(name: str, hidden: Tensor | None, full: tuple[int, ...], q: Tensor) -> None:
    """Raise unless `hidden` is None or a bool tensor broadcastable to `full`."""
    if hidden is None:
        return
    if not isinstance(hidden, Tensor) or hidden.dtype != torch.bool:
        got = hidden.dtype if isinstance(hidden, Tensor) else type(hidden).__name__
        raise bad_argument(name, "a bool tensor, True = not seen", got)
    sizes = zip(reversed(hidden.shape), reversed(full), strict=False)
    if hidden.dim() > len(full) or any(size not in (1, wanted) for size, wanted in sizes):
        raise bad_argument(name, f"a shape that broadcasts to {full}", tuple(hidden.shape))
    if hidden.device != q.device:
        raise bad_argument(name, f"device {q.device} of q", hidden.device)


def _check_heads(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, any_length: bool
) -> None:
    for name, tensor in (("q", q), ("k", k)):
        check_tokens(name, tensor, rank=4, layout="(B, H, N, D)")
    length = k.shape[2] if any_length else q.shape[2]
    _check_operand("k", k, (*q.shape[:2], length, q.shape[3]), q)
    _check_operand("v", v, tuple(k.shape), q)
    check_padding_mask(key_padding_mask, k, token_dim=2)


def _check_sort(
    sort: Tensor,
    q: Tensor,
    num_blocks: int,
    is_shared: bool,
    null_kv: tuple[Tensor, Tensor] | None,
) -> None:
    check_tokens("sort", sort, rank=4, layout="(B, H, R, n)")
    check_like("sort", sort, q, "q")
    rows, columns = sort.shape[2:]
    if sort.shape[:2] != q.shape[:2]:
        raise bad_argument("sort", f"shape {(*q.shape[:2], 'R', 'n')}", tuple(sort.shape))
    if columns != num_blocks and (null_kv is None or columns < num_blocks):
        raise bad_argument("sort", f"{num_blocks} columns, one for each block", columns)
    if null_kv is not None:
        if not isinstance(null_kv, tuple | list) or len(null_kv) != 2:
            raise bad_argument("null_kv", "a null key and a null value", shown(null_kv))
        for tensor in null_kv:
            _check_operand("null_kv", tensor, (q.shape[1], q.shape[3]), q)
    if not is_shared and (rows < num_blocks or rows % num_blocks):
        raise bad_argument("sort", f"a multiple of {num_blocks} rows", rows)
