"""Sparse Sinkhorn sorting on a GPU: balancing, and attention to sorted blocks.

- Balancing: one program runs all steps of a matrix. Plain torch launches four kernels per
  iteration. The eager formulas compute second-order gradients.
- Attention does not copy tokens into blocks. torch's operators copy tokens into blocks and back,
  nine times in the forward pass. The backward pass recomputes the sorted keys and values, and the
  dropped weights from a seed.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support
from rifflemix.ops.define import define
from rifflemix.ops.dropout.spec import scale
from rifflemix.ops.sinkhorn import eager
from rifflemix.ops.sinkhorn import triton_attention_kernels as attention_kernels
from rifflemix.ops.sinkhorn import triton_kernels as balancing_kernels
from rifflemix.ops.sinkhorn.kernel_attention import (
    ARGUMENTS,
    SAVES,
    SHAPES,
    Visibility,
    by_head,
    empty_gradients,
    empty_outputs,
    formula,
    gradients_by,
    run_kernel,
)
from rifflemix.ops.sinkhorn.triton_limits import DTYPES, check_attention, check_limits, tile_size
from rifflemix.ops.triton_support import ROUNDED, launch

# Maximum matrix entries per thread, since the backward keeps three matrices in registers; minimum
# entries per thread for another warp; maximum warps. Causal matrices use the minimum of warps, the
# only number that was timed for running sums.
_MOST_NUMBERS, _LEAST_NUMBERS, _WARPS = 32, 4, 8


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    causal: bool,
    final_row_norm: bool,
    block_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sinkhorn`."""
    padding = block_padding_mask
    if padding is not None:
        padding = padding.reshape(-1, log_scores.shape[-1])
    last_rows = causal and final_row_norm
    return _balance(log_scores, padding, num_iterations, causal, last_rows)[0]


def _per_sample(log_scores: Tensor) -> int:
    """Return the number of matrices per sample."""
    samples = log_scores.shape[0] if log_scores.dim() > 2 else 1
    return max(1, log_scores.numel() // log_scores.shape[-1] ** 2 // max(1, samples))


def _check_balance(log_scores: Tensor, padding: Tensor | None, *settings: Any) -> dict[str, Any]:
    """Raise InputError for unsupported numbers; return further sizes."""
    num_iterations, causal, last_rows, *_ = settings
    check_limits(log_scores, num_iterations, causal)
    if last_rows and not causal:
        raise bad_argument("last_rows", "False unless causal", last_rows)
    return {"SAMPLES": log_scores.shape[0] if log_scores.dim() > 2 else 1}


def _check_balance_backward(
    log_scores: Tensor, padding: Tensor | None, *arguments: Any
) -> dict[str, Any]:
    norms, running = _kept_shapes(log_scores, *arguments[:2])
    return {
        **_check_balance(log_scores, padding, *arguments),
        "NORMS...": norms,
        "RUNNING...": running,
    }


def _empty_outputs(
    log_scores: Tensor,
    padding: Tensor | None,
    num_iterations: int,
    causal: bool,
    last_rows: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    norms, running = (
        log_scores.new_empty(shape, dtype=torch.float32)
        for shape in _kept_shapes(log_scores, num_iterations, causal)
    )
    return log_scores.new_empty(log_scores.shape), norms, running


def _kept_shapes(
    log_scores: Tensor, num_iterations: int, causal: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    *leading, size, _ = log_scores.shape
    if causal:
        return (*leading, num_iterations + 1, size), (*leading, num_iterations, size, size)
    return (*leading, 2 * num_iterations, size), (0,)


@define(
    "triton_balance_backward",
    schema="(Tensor log_scores, Tensor? padding, int num_iterations, bool causal, bool last_rows, "
    "Tensor norms, Tensor running, Tensor grad_sort) -> Tensor",
    shapes="log_scores: ... K K, padding: SAMPLES K bool, norms: NORMS... float32, "
    "running: RUNNING... float32, grad_sort: ... K K",
    dtypes=DTYPES,
    check=_check_balance_backward,
    like="log_scores",
)
def _balance_backward(
    log_scores: Tensor,
    padding: Tensor | None,
    num_iterations: int,
    causal: bool,
    last_rows: bool,
    norms: Tensor,
    running: Tensor,
    grad_sort: Tensor,
) -> Tensor:
    """Compute the gradient of the scores."""
    triton_support.check_device(log_scores)
    size = log_scores.shape[-1]
    log_scores, grad_sort = log_scores.contiguous(), grad_sort.contiguous()
    grad_scores = torch.empty_like(log_scores)
    launch(
        balancing_kernels.balance_backward, log_scores.numel() // size**2, log_scores,
        log_scores, _bytes(padding), norms.contiguous(), running.contiguous(), grad_sort,
        grad_scores, _per_sample(log_scores), size, num_iterations, eager.LOG_ZERO,
        CAUSAL=causal, LAST_ROWS=last_rows, **_matrix_tile(size, causal),
    )  # fmt: skip
    return grad_scores


def _balance_formula(
    log_scores: Tensor,
    padding: Tensor | None,
    num_iterations: int,
    causal: bool,
    last_rows: bool,
) -> Tensor:
    return eager.sinkhorn(log_scores, num_iterations, causal, last_rows, padding)


@define(
    "triton_balance",
    schema="(Tensor log_scores, Tensor? padding, int num_iterations, bool causal, bool last_rows) "
    "-> (Tensor, Tensor, Tensor)",
    shapes="log_scores: ... K K, padding: SAMPLES K bool",
    dtypes=DTYPES,
    check=_check_balance,
    like=_empty_outputs,
    outputs="sort | norms running",
    saves="log_scores padding num_iterations causal last_rows norms running",
    backward=_balance_backward,
    formula=_balance_formula,
)
def _balance(
    log_scores: Tensor,
    padding: Tensor | None,
    num_iterations: int,
    causal: bool,
    last_rows: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the sort matrix, and the subtracted norms in float32 (see `triton_kernels`).

    Args:
        log_scores: (..., n, n) scores.
        padding: (samples, n) bool, True = padding; every sample has the same number of matrices.
        num_iterations: number T of iterations.
        causal: row u uses columns v < u; columns are normalized over the rows so far.
        last_rows: end with a row step (`causal` only).
    """
    triton_support.check_device(log_scores)
    log_scores = log_scores.contiguous()
    outputs = _empty_outputs(log_scores, padding, num_iterations, causal, last_rows)
    size = log_scores.shape[-1]
    launch(
        balancing_kernels.balance, log_scores.numel() // size**2, log_scores,
        log_scores, _bytes(padding), *outputs, _per_sample(log_scores), size, num_iterations,
        eager.LOG_ZERO, CAUSAL=causal, LAST_ROWS=last_rows, **_matrix_tile(size, causal),
    )  # fmt: skip
    return outputs


def _bytes(padding: Tensor | None) -> Tensor | None:
    return None if padding is None else padding.contiguous().view(torch.uint8)


def _matrix_tile(size: int, causal: bool) -> dict[str, int]:
    """Choose the size of the square tile and the number of warps."""
    side = tile_size(size)
    least, most = (max(1, side**2 // (32 * n)) for n in (_MOST_NUMBERS, _LEAST_NUMBERS))
    return {"SIZE": side, "num_warps": least if causal else max(least, min(_WARPS, most))}


# Sizes of tiles in bytes: a row of tokens in the sort kernels, and a column of keys at a time.
_ROW, _KEYS = 256, 128
# Keys per tile in `kept_weights`.
_LEAST_KEYS = 16
# Maximum number of `sort_gradient` programs per head; each program writes separate sums.
_PARTS = 8


@define(
    "triton_sinkhorn_attention_backward",
    schema=f"({ARGUMENTS}, Tensor y, Tensor log_sums, Tensor grad_y) -> (Tensor, Tensor)",
    shapes=f"{SHAPES}, y: B H N D, log_sums: B H N float32, grad_y: B H N D",
    dtypes=DTYPES,
    check=check_attention,
    like=lambda q, k, v, sort, *_: empty_gradients(q, k, v, sort),
)
def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, *others: Any
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of Q, K, V (one tensor) and `sort`."""
    triton_support.check_device(q)
    *settings, y, log_sums, grad_y = others
    terms = Visibility(*settings)
    grads, _ = empty_gradients(q, k, v, sort)
    grad_q, grad_k, grad_v = by_head(grads)
    q, k, v, sort = _readable(q), _readable(k), _readable(v), sort.contiguous()
    y, grad_y = _readable(y), _readable(grad_y)
    *hidden, unsorted = _hidden(terms)
    sorted_k, sorted_v = _sort(k, v, sort, block_size, unsorted)
    grad_sorted_k, grad_sorted_v = torch.empty_like(sorted_k), torch.empty_like(sorted_v)
    launch(
        attention_kernels.attend_gradient, _programs(q, block_size), q,
        q, k, v, sorted_k, sorted_v, *hidden, terms.seed, y, log_sums.contiguous(), grad_y,
        grad_q, grad_k, grad_v, grad_sorted_k, grad_sorted_v,
        *_strides(q, k, v, y, grad_y, grad_q), *_sizes(q, sort, block_size), terms.p,
        CAUSAL=terms.causal, **_block_tile(q, block_size),
    )  # fmt: skip
    sorted_grads = (grad_sorted_k, grad_sorted_v)
    return grads, _sort_gradient(k, v, sort, block_size, unsorted, sorted_grads, (grad_k, grad_v))


def _drop(weights: Tensor, terms: Visibility) -> Tensor:
    """Apply the kernels' dropout to weights (B, H, n, b, S)."""
    batch, heads, blocks, block_size, keys = weights.shape
    kept = torch.empty(weights.shape, dtype=torch.uint8, device=weights.device)
    queries = tile_size(block_size)
    launch(
        attention_kernels.kept_weights, batch * heads * blocks, weights,
        terms.seed, kept, blocks, block_size, keys - block_size, terms.p,
        QUERIES=queries, KEYS=_LEAST_KEYS,
    )  # fmt: skip
    return torch.where(kept.view(torch.bool), weights * scale(terms.p), 0.0)


@define(
    "triton_sinkhorn_attention",
    schema=f"({ARGUMENTS}) -> (Tensor, Tensor)",
    shapes=SHAPES,
    dtypes=DTYPES,
    check=check_attention,
    like=empty_outputs,
    outputs="y | log_sums",
    saves=f"{SAVES} y log_sums",
    backward=gradients_by(_attend_backward),
    formula=partial(formula, _drop),
)
def _attend(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, *settings: Any
) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp of each query's scores."""
    triton_support.check_device(q)
    terms = Visibility(*settings)
    y, log_sums = empty_outputs(q, k, v, sort, block_size)
    q, k, v, sort = _readable(q), _readable(k), _readable(v), sort.contiguous()
    hidden = _hidden(terms)
    sorted_k, sorted_v = _sort(k, v, sort, block_size, hidden[2])
    launch(
        attention_kernels.attend, _programs(q, block_size), q,
        q, k, v, sorted_k, sorted_v, *hidden[:2], terms.seed, y, log_sums,
        *_strides(q, k, v, y), *_sizes(q, sort, block_size), terms.p,
        CAUSAL=terms.causal, **_block_tile(q, block_size),
    )  # fmt: skip
    return y, log_sums


def _sort(
    k: Tensor, v: Tensor, sort: Tensor, block_size: int, unsorted: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the sorted keys and values, (B, H, R b, D) each."""
    batch, heads, _, width = k.shape
    rows, blocks = sort.shape[2:]
    sorted_k, sorted_v = (x.new_empty((batch, heads, rows * block_size, width)) for x in (k, v))
    tile = _sort_tile(k, sort)
    launch(
        attention_kernels.sort_tokens, batch * heads * -(-block_size // tile["POSITIONS"]), k,
        k, v, sort, unsorted, sorted_k, sorted_v, *_strides(k, v),
        heads, rows, blocks, block_size, width, **tile,
    )  # fmt: skip
    return sorted_k, sorted_v


def _sort_gradient(
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    unsorted: Tensor | None,
    sorted_grads: tuple[Tensor, Tensor],
    grads: tuple[Tensor, Tensor],
) -> Tensor:
    """Compute the gradient of `sort`; add the sorted gradients to `grads`."""
    batch, heads, _, width = k.shape
    tile = _sort_tile(k, sort)
    groups = -(-block_size // tile["POSITIONS"])
    steps = -(-groups // _PARTS)
    parts = -(-groups // steps)
    sums = k.new_empty((batch, heads, parts, *sort.shape[2:]), dtype=torch.float32)
    launch(
        attention_kernels.sort_gradient, batch * heads * parts, k,
        k, v, sort, unsorted, *sorted_grads, *grads, sums,
        *_strides(k, v, grads[0]), heads, *sort.shape[2:], block_size, width, parts,
        GROUPS=steps, **tile,
    )  # fmt: skip
    return sums.sum(2).to(sort.dtype)


def _hidden(terms: Visibility) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Convert the masks to bytes.

    The masks are hidden sorted keys, hidden local keys, and tokens to sort as zeros.
    """
    unseen, padding = (
        None if mask is None else mask.contiguous().view(torch.uint8)
        for mask in (terms.unseen, terms.padding)
    )
    return unseen, padding, None if terms.mixes_padding else padding


def _readable(tokens: Tensor) -> Tensor:
    """Make the features contiguous; copy only if necessary."""
    return tokens if tokens.stride(-1) == 1 else tokens.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def _programs(q: Tensor, block_size: int) -> int:
    batch, heads, length, _ = q.shape
    return batch * heads * (length // block_size)


def _sizes(q: Tensor, sort: Tensor, block_size: int) -> tuple[int | float, ...]:
    """Return the size arguments of the attention kernels.

    They are heads, blocks, block size, sorted keys per block, features and scale of logits.
    """
    _, heads, length, width = q.shape
    blocks = length // block_size
    count = sort.shape[2] // blocks * block_size
    return heads, blocks, block_size, count, width, 1.0 / math.sqrt(width)


def _block_tile(q: Tensor, block_size: int) -> dict[str, int]:
    """Choose the attention tile: a query block, some keys at a time."""
    queries, width = tile_size(block_size), tile_size(q.shape[3])
    tile = {"QUERIES": queries, "KEYS": min(queries, _KEYS // q.element_size()), "WIDTH": width}
    size = queries * width * q.element_size()
    warps = 8 if size > 8192 else 4 if size > 4096 else 1
    return {**tile, "num_warps": warps, "num_stages": 1, **ROUNDED}


def _sort_tile(k: Tensor, sort: Tensor) -> dict[str, int]:
    """Choose the sort tile: `sort`, and some positions of all blocks."""
    rows, blocks, width = *map(tile_size, sort.shape[2:]), tile_size(k.shape[3])
    positions = max(1, _ROW // k.element_size() // width)
    tile = {"POSITIONS": positions, "WIDTH": width, "ROWS": rows, "BLOCKS": blocks}
    largest = max(rows, blocks) * max(rows, blocks, positions * width) * k.element_size()
    return {**tile, "num_warps": 8 if largest > 8192 else 4, "num_stages": 1}


sinkhorn_attention = partial(run_kernel, _attend)
"""See `rifflemix.ops.sinkhorn.sinkhorn_attention`; needs settings with one softmax."""
