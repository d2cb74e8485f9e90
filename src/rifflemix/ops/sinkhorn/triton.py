"""Sinkhorn balancing on a GPU: one program runs all steps of a matrix.

Plain torch launches four kernels per iteration. The eager formulas compute second-order gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support
from rifflemix.ops.define import define
from rifflemix.ops.sinkhorn import eager
from rifflemix.ops.sinkhorn import triton_kernels as kernels
from rifflemix.ops.sinkhorn.triton_limits import DTYPES, check_limits, tile_size
from rifflemix.ops.triton_support import launch

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
    sort: Tensor = _forward(log_scores, padding, num_iterations, causal, last_rows)[0]
    return sort


def _per_sample(log_scores: Tensor) -> int:
    """Return the number of matrices per sample."""
    samples = log_scores.shape[0] if log_scores.dim() > 2 else 1
    return max(1, log_scores.numel() // log_scores.shape[-1] ** 2 // max(1, samples))


def _check(log_scores: Tensor, padding: Tensor | None, *settings: Any) -> dict[str, Any]:
    """Raise InputError for unsupported numbers; return further sizes."""
    num_iterations, causal, last_rows, *_ = settings
    check_limits(log_scores, num_iterations, causal)
    if last_rows and not causal:
        raise bad_argument("last_rows", "False unless causal", last_rows)
    return {"SAMPLES": log_scores.shape[0] if log_scores.dim() > 2 else 1}


def _check_backward(log_scores: Tensor, padding: Tensor | None, *arguments: Any) -> dict[str, Any]:
    norms, running = _kept_shapes(log_scores, *arguments[:2])
    return {**_check(log_scores, padding, *arguments), "NORMS...": norms, "RUNNING...": running}


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
    check=_check_backward,
    like="log_scores",
)
def _backward(
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
        kernels.balance_backward, log_scores.numel() // size**2, log_scores,
        log_scores, _bytes(padding), norms.contiguous(), running.contiguous(), grad_sort,
        grad_scores, _per_sample(log_scores), size, num_iterations, eager.LOG_ZERO,
        CAUSAL=causal, LAST_ROWS=last_rows, **_tile(size, causal),
    )  # fmt: skip
    return grad_scores


def _formula(
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
    check=_check,
    like=_empty_outputs,
    outputs="sort | norms running",
    saves="log_scores padding num_iterations causal last_rows norms running",
    backward=_backward,
    formula=_formula,
)
def _forward(
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
        kernels.balance, log_scores.numel() // size**2, log_scores,
        log_scores, _bytes(padding), *outputs, _per_sample(log_scores), size, num_iterations,
        eager.LOG_ZERO, CAUSAL=causal, LAST_ROWS=last_rows, **_tile(size, causal),
    )  # fmt: skip
    return outputs


def _bytes(padding: Tensor | None) -> Tensor | None:
    return None if padding is None else padding.contiguous().view(torch.uint8)


def _tile(size: int, causal: bool) -> dict[str, int]:
    """Choose the size of the square tile and the number of warps."""
    side = tile_size(size)
    least, most = (max(1, side**2 // (32 * n)) for n in (_MOST_NUMBERS, _LEAST_NUMBERS))
    return {"SIZE": side, "num_warps": least if causal else max(least, min(_WARPS, most))}
