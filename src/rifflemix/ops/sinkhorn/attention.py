"""Attention over local and sorted blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.checks import (
    check_bool,
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
from rifflemix.ops.sinkhorn import unchecked
from rifflemix.ops.sinkhorn.blocks import PADDING_RULES

COMBINE = ("concat", "sum_logits", "sum_out")


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
    """Attention of each block of queries to its own block and to its sorted keys.

    - "concat": one softmax over the sorted and the local keys together.
    - "sum_logits": softmax(Q psi(K)^T + Q K^T) psi(V), the printed formula: local keys shift the
      logits, local values are not used; a hidden local key shifts nothing.
    - "sum_out": two softmaxes, one over the sorted and one over the local keys, added.

    Logits are divided by sqrt(D). A query that sees no key gets zero.

    Args:
        q: (B, H, n, b, D) queries in blocks.
        k: (B, H, n, b, D) local keys.
        v: (B, H, n, b, D) local values.
        sorted_k: (B, H, n, s, D) sorted keys of each block; s = b for "sum_logits".
        sorted_v: (B, H, n, s, D) their values.
        combine: one of the three.
        hidden: bool, broadcasts to (B, H, n, b, b), True = local key not seen by the query.
        sorted_hidden: bool, broadcasts to (B, H, n, b, s).
        dropout_p: probability of dropping an attention weight.
        backend: "auto", "reference" (no dropout) or "eager".

    Returns:
        (B, H, n, b, D).

    Raises:
        InputError: an unknown name, or shapes, dtypes or devices that do not fit.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", section 3.2.
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
    return unchecked.block_attention(
        q, k, v, sorted_k, sorted_v, combine, hidden, sorted_hidden, dropout_p, backend
    )


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
    """Sparse Sinkhorn attention for a given sort matrix; no N x N matrix unless `mixture`.

    Keys and values are sorted in blocks by `sort`; each block of queries attends to its sorted
    blocks and to itself, in the way `combine` names (see `block_attention`).

    Args:
        q: (B, H, N, D) queries; with SortCut and no local term any number of them.
        k: (B, H, N, D) keys.
        v: (B, H, N, D) values.
        sort: (B, H, R, n) with n = N / b, rows destinations. R = n * r: rows u*r .. u*r+r-1 hold
            the sorted blocks of query block u (r = 1 for Sinkhorn, k for top-k). With `null_kv`
            the first columns, those in excess of n, weigh null blocks. With `causal=True` every
            row of block u must be zero at sources v >= u; `sinkhorn` and `top_k_blocks` see to it.
            A row of zeros is hidden where `causal` or a mask is given; elsewhere it is literally
            a block of zeros.
        block_size: tokens b in a block, a divisor of N.
        combine: "concat", "sum_logits" or "sum_out".
        sortcut: m > 0: all queries share the first m rows of `sort` and have no local term.
        sortcut_local: SortCut with each query's own block beside the shared ones.
        mixture: add full softmax attention with the same q, k, v (quadratic).
        causal: a query sees earlier tokens of its own block only; not with SortCut.
        key_padding_mask: (B, N) bool, True = padding.
        null_kv: (H, D) null key and (H, D) null value, repeated to fill null blocks.
        padding_rule: see `sorted_padding_mask`. "majority" also keeps padding out of the sums;
            "argmax" mixes the values at padding too, as the port that it comes from does.
        rotation: causal only: blocks start at this token, and the earlier tokens attend only to
            each other. `sort` belongs to the sequence rolled left by as much.
        dropout_p: probability of dropping an attention weight.
        backend: "auto", "reference" (no dropout), "eager", or for "concat" without SortCut, null
            blocks and rotation "cpu", and on a GPU "triton", up to 128 blocks of 128 tokens
            (float32: 64 of 64, or of 128 where D <= 32).

    Returns:
        (B, H, N, D); zero for a query that sees no key.

    Raises:
        InputError: an unknown name, shapes, dtypes or devices that do not fit, or options that
            exclude each other.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", sections 3.2 to 3.4.
    """
    check_choice("combine", combine, COMBINE)
    check_choice("padding_rule", padding_rule, PADDING_RULES)
    for name, flag in (("sortcut_local", sortcut_local), ("mixture", mixture), ("causal", causal)):
        check_bool(name, flag)
    sortcut, rotation = check_integer("sortcut", sortcut), check_integer("rotation", rotation)
    shared = bool(sortcut) and not sortcut_local
    _check_heads(q, k, v, key_padding_mask, any_length=shared and not mixture)
    block_size = check_divides("block_size", block_size, k.shape[2], "the number of tokens")
    _check_sort(sort, q, k.shape[2] // block_size, sortcut, null_kv)
    _check_exclusions(sortcut, sortcut_local, causal, rotation, block_size)
    per_query = sortcut or sort.shape[2] * block_size // k.shape[2]
    if combine != "concat" and (shared or (combine == "sum_logits" and per_query != 1)):
        expected = '"concat" for SortCut' if shared else "one sorted block for each query block"
        raise bad_argument("combine", expected, repr(combine))
    dropout_p = check_probability("dropout_p", dropout_p)  # kernels differ for 0 and 0.0
    return unchecked.sinkhorn_attention(
        q,
        k,
        v,
        sort,
        block_size,
        combine=combine,
        sortcut=sortcut,
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
    """Raise unless `hidden` is None or a bool tensor that broadcasts to `full`."""
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
    sortcut: int,
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
    if sortcut < 0 or sortcut > rows:
        raise bad_argument("sortcut", f"0 to {rows}, the rows of sort", sortcut)
    if not sortcut and (rows < num_blocks or rows % num_blocks):
        raise bad_argument("sort", f"a multiple of {num_blocks} rows", rows)


def _check_exclusions(
    sortcut: int, sortcut_local: bool, causal: bool, rotation: int, block_size: int
) -> None:
    if sortcut and causal:
        raise bad_argument("sortcut", "0 with causal=True", sortcut, "it is for encoders only")
    if sortcut_local and not sortcut:
        raise bad_argument("sortcut_local", "sortcut above 0", "sortcut=0")
    if rotation and not (causal and 0 < rotation < block_size):
        raise bad_argument("rotation", f"0, or with causal=True 1 to {block_size - 1}", rotation)
