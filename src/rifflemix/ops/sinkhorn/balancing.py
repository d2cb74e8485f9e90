"""Convert block scores to a sort matrix: Sinkhorn balancing, Gumbel noise, top-k selection."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rifflemix.checks import (
    FLOATS,
    check_bool,
    check_floating,
    check_integer,
    check_integers,
    check_like,
    check_positive,
    shown,
)
from rifflemix.errors import bad_argument
from rifflemix.ops.sinkhorn import backends
from rifflemix.ops.sinkhorn.options import SinkhornOptions


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    *,
    causal: bool = False,
    final_row_norm: bool = True,
    block_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Balance exp(log_scores) into a (nearly) doubly stochastic sort matrix.

    The computation uses the log domain. Each iteration normalizes every row over its sources, then
    every column over its destinations, so the columns sum to one at the end.

    With `causal=True`, destination u uses only sources v < u, so row 0 is zero. Row u of a column
    is normalized over the destinations u' <= u. Row u therefore depends only on rows up to u.

    Args:
        log_scores: (..., n, n) scores; rows are destinations, columns are sources. The result is
            zero at entries of -inf.
        num_iterations: number N_k of iterations, each with a row and a column step. 0 returns
            exp(log_scores) without normalization.
        causal: use only past sources, and normalize columns over the rows so far.
        final_row_norm: end with one more row step (causal only). Each sorted block is then a
            convex combination. False is the order in the paper, with the result S[u, u-1] = 1.
        block_padding_mask: (B, n) bool, True = the block contains only padding. B is the first
            dimension of `log_scores`; the mask is (n,) if `log_scores` is (n, n). Padding blocks
            are neither sources nor destinations, and do not change the other entries.
        backend: "auto", "reference", "eager", "cpu" (at least one iteration) or "triton" (not
            float64; at least one iteration; up to 128 blocks, 64 if causal).

    Returns:
        Sort matrix S with the shape and dtype of `log_scores`. Rows and columns without usable
        entries are zero.

    Raises:
        InputError: a wrong shape, dtype or number of iterations.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", sections 3.1.1 and 3.3.2.

    Example:
        >>> import torch, rifflemix as rm
        >>> log_scores = torch.tensor([[1.0, 2.0], [4.0, 3.0]]).log()
        >>> rm.ops.sinkhorn(log_scores, num_iterations=20).mul(100).round().tolist()
        [[38.0, 62.0], [62.0, 38.0]]
    """
    _check_scores("log_scores", log_scores, square=True)
    options = SinkhornOptions(
        num_iterations=num_iterations, causal=causal, final_row_norm=final_row_norm
    ).checked_balancing()
    _check_block_mask(block_padding_mask, log_scores, log_scores.shape[-1])
    return backends.sinkhorn(
        log_scores, options.num_iterations, causal, final_row_norm, block_padding_mask, backend
    )


def gumbel_noise(
    shape: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draw standard Gumbel samples -log(-log u), u uniform in (0, 1).

    Args:
        shape: shape of the result.
        generator: source of randomness; torch's default generator if None.
        device: device of the result.
        dtype: floating-point dtype of the result. The samples are drawn in at least float32.

    Returns:
        Samples between about -2.6 and 13.8 (u is clamped to [1e-6, 1 - 1e-6]).

    Raises:
        InputError: `shape` is not a sequence of integers, or `dtype` is not floating point.

    Source: Tay et al. 2020, section 3.2.1; Jang et al. 2016.

    Example:
        >>> import torch, rifflemix as rm
        >>> noise = rm.ops.gumbel_noise((4, 4), generator=torch.Generator().manual_seed(0))
        >>> noise.shape, noise.dtype
        (torch.Size([4, 4]), torch.float32)
    """
    size = check_integers("shape", shape, 0)
    wanted = dtype or torch.get_default_dtype()
    if not isinstance(wanted, torch.dtype) or wanted not in FLOATS:
        raise bad_argument("dtype", "a floating-point dtype", shown(wanted))
    return backends.gumbel_noise(size, device, wanted, generator)


def gumbel_sinkhorn(
    scores: Tensor,
    num_iterations: int,
    *,
    temperature: float = 0.75,
    noise: Tensor | None = None,
    kernel: str = "exp",
    causal: bool = False,
    final_row_norm: bool = True,
    block_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute sinkhorn((log kernel(scores) + noise) / temperature).

    Args:
        scores: (..., n, n) output R of a sorting network; rows are destinations.
        num_iterations: see `sinkhorn`.
        temperature: tau > 0; a lower temperature gives a matrix closer to a permutation.
        noise: tensor with the shape of `scores` (see `gumbel_noise`), or None.
        kernel: "exp" uses the scores as logarithms, as in the paper. "relu" balances the matrix
            relu(scores) + 1e-6, as in a widely used PyTorch port.
        causal: see `sinkhorn`.
        final_row_norm: see `sinkhorn`.
        block_padding_mask: see `sinkhorn`.
        backend: see `sinkhorn`.

    Returns:
        Sort matrix S with the shape and dtype of `scores`.

    Raises:
        InputError: a wrong shape, an unknown name, or a number out of range.

    Source: Tay et al. 2020, section 3.2.1.

    Example:
        >>> import torch, rifflemix as rm
        >>> scores = torch.randn(2, 4, 4)
        >>> sort = rm.ops.gumbel_sinkhorn(scores, 8, noise=rm.ops.gumbel_noise(scores.shape))
        >>> torch.allclose(sort.sum(dim=1), torch.ones(2, 4))
        True
    """
    _check_scores("scores", scores, square=True)
    options = SinkhornOptions(
        temperature=temperature,
        num_iterations=num_iterations,
        kernel=kernel,
        causal=causal,
        final_row_norm=final_row_norm,
    ).checked_balancing()
    _check_block_mask(block_padding_mask, scores, scores.shape[-1])
    if noise is not None:
        check_floating("noise", noise, tuple(scores.shape))
        if noise.shape != scores.shape:
            raise bad_argument("noise", f"shape {tuple(scores.shape)}", tuple(noise.shape))
        check_like("noise", noise, scores, "scores")
    return backends.gumbel_sinkhorn(
        scores,
        options.num_iterations,
        options.temperature,
        noise,
        kernel,
        causal,
        final_row_norm,
        block_padding_mask,
        backend,
    )


def top_k_blocks(
    scores: Tensor,
    k: int,
    *,
    temperature: float = 1.0,
    causal: bool = False,
    num_null: int = 0,
    block_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Pick the k best source blocks for each destination, instead of balancing.

    Pick j is the source with the highest score among the sources that are left. Its weight is its
    softmax probability among these sources. The earlier source wins a tie. If no source is left,
    the row is zero.

    Args:
        scores: (..., R, num_null + n) scores; rows are destinations, columns are sources.
        k: number of picks for each destination.
        temperature: temperature tau > 0 of the softmax.
        causal: use only sources v < u and null blocks; needs R = n.
        num_null: number of leading columns for null blocks, available to every destination.
        block_padding_mask: (B, n) bool, True = the block contains only padding; see `sinkhorn`.
        backend: "auto", "reference" or "eager".

    Returns:
        (..., R * k, num_null + n) sort matrix; row u * k + j is pick j of destination u.

    Raises:
        InputError: a wrong shape, or a number out of range.

    Source: the top-k variant of the sinkhorn-transformer package (no Sinkhorn iterations).

    Example:
        >>> import torch, rifflemix as rm
        >>> scores = torch.tensor([[0.0, 3.0, 1.0]])
        >>> rm.ops.top_k_blocks(scores, k=2).gt(0).tolist()
        [[False, True, False], [False, False, True]]
    """
    _check_scores("scores", scores, square=False)
    rows, columns = scores.shape[-2:]
    num_null = check_integer("num_null", num_null, 0)
    k = check_integer("k", k)
    if not 1 <= k <= columns:
        raise bad_argument("k", f"1 to {columns}, the number of source blocks", k)
    temperature = check_positive("temperature", temperature)
    if check_bool("causal", causal) and rows != columns - num_null:
        raise bad_argument("scores", f"shape (..., n, {num_null} + n)", tuple(scores.shape))
    _check_block_mask(block_padding_mask, scores, columns - num_null)
    module = backends.BLOCKS.pick(backend)
    return module.top_k_blocks(scores, k, temperature, causal, num_null, block_padding_mask)


def _check_scores(name: str, scores: Tensor, *, square: bool) -> None:
    layout = "(..., n, n)" if square else "(..., rows, columns)"
    check_floating(name, scores, layout)
    if scores.dim() < 2 or (square and scores.shape[-1] != scores.shape[-2]):
        raise bad_argument(name, f"shape {layout}", tuple(scores.shape))
    if scores.shape[-1] < 1 or scores.shape[-2] < 1:
        raise bad_argument(name, f"at least one block in shape {layout}", tuple(scores.shape))


def _check_block_mask(mask: Tensor | None, scores: Tensor, num_blocks: int) -> None:
    if mask is None:
        return
    shape = (*scores.shape[:1], num_blocks) if scores.dim() > 2 else (num_blocks,)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise bad_argument("block_padding_mask", "a bool tensor, True = padding only", got)
    if tuple(mask.shape) != shape:
        raise bad_argument("block_padding_mask", f"shape {shape}", tuple(mask.shape))
    if mask.device != scores.device:
        raise bad_argument("block_padding_mask", f"device {scores.device}", mask.device)
