"""Sinkhorn operators without argument checks, for mixers and `rifflemix.ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.dropout.cpu import supports
from rifflemix.ops.native import note_slow_call
from rifflemix.ops.sinkhorn import (
    cpu,
    cpu_attention,
    eager,
    eager_attention,
    reference,
    reference_attention,
)
from rifflemix.ops.sinkhorn.kernel_attention import has_one_softmax
from rifflemix.ops.sinkhorn.triton_limits import with_triton, with_triton_attention
from rifflemix.ops.triton_support import INTERPRETED

KERNELS = ("exp", "relu")
_RELU_EPSILON = 1e-6
_GUMBEL_EPSILON = 1e-6
# The reference backend does not support dropout.
_WITH_DROPOUT = ("eager",)


def _load_triton() -> Any:
    from rifflemix.ops.sinkhorn import triton

    return triton


def _load_triton_attention() -> Any:
    from rifflemix.ops.sinkhorn import triton_attention

    return triton_attention


_BLOCKS = Family(reference, eager, cpu=cpu, load_triton=_load_triton)
_ATTENTION = Family(
    reference_attention, eager_attention, cpu=cpu_attention, load_triton=_load_triton_attention
)


def pool_blocks(
    x: Tensor,
    block_size: int,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.pool_blocks`."""
    pooled: Tensor = _BLOCKS.pick(backend).pool_blocks(x, block_size, causal, key_padding_mask)
    return pooled


def block_scores(
    q: Tensor,
    k: Tensor,
    block_size: int,
    causal: bool = False,
    shared: bool = False,
    key_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.block_scores`."""
    module = _BLOCKS.pick(backend)
    scores: Tensor = module.block_scores(q, k, block_size, causal, shared, key_padding_mask)
    return scores


def sort_blocks(blocks: Tensor, sort: Tensor, backend: str = "auto") -> Tensor:
    """See `rifflemix.ops.sort_blocks`."""
    y: Tensor = _BLOCKS.pick(backend).sort_blocks(blocks, sort)
    return y if y.dtype == blocks.dtype else y.to(blocks.dtype)  # autocast may change the dtype


def sorted_padding_mask(
    sort: Tensor,
    block_size: int,
    key_padding_mask: Tensor | None,
    rule: str,
    num_null: int,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.sorted_padding_mask`."""
    module = _BLOCKS.pick(backend)
    hidden: Tensor = module.sorted_padding_mask(sort, block_size, key_padding_mask, rule, num_null)
    return hidden


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    causal: bool = False,
    final_row_norm: bool = True,
    block_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.sinkhorn`."""
    runs = cpu.supports_balancing(log_scores, num_iterations)
    available = _available(runs, log_scores)
    if log_scores.is_cuda or INTERPRETED:
        available = with_triton(available, log_scores, num_iterations, causal)
    module = _BLOCKS.pick(backend, available)
    sort: Tensor = module.sinkhorn(
        log_scores, num_iterations, causal, final_row_norm, block_padding_mask
    )
    return sort


def gumbel_noise(
    shape: Sequence[int],
    device: torch.device | str | None,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> Tensor:
    """See `rifflemix.ops.gumbel_noise`."""
    # torch.rand does not accept a generator, not even None, if a size is symbolic.
    u = torch.empty(shape, device=device, dtype=eager.statistics_dtype(dtype))
    u = u.uniform_(generator=generator).clamp(_GUMBEL_EPSILON, 1.0 - _GUMBEL_EPSILON)
    return -torch.log(-torch.log(u)).to(dtype)


def gumbel_sinkhorn(
    scores: Tensor,
    num_iterations: int,
    temperature: float,
    noise: Tensor | None,
    kernel: str = "exp",
    causal: bool = False,
    final_row_norm: bool = True,
    block_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.gumbel_sinkhorn`."""
    logits = scores if kernel == "exp" else torch.log(scores.relu() + _RELU_EPSILON)
    if noise is not None:
        logits = logits + noise
    return sinkhorn(
        logits / temperature, num_iterations, causal, final_row_norm, block_padding_mask, backend
    )


def top_k_blocks(
    scores: Tensor,
    k: int,
    temperature: float,
    causal: bool = False,
    num_null: int = 0,
    block_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.top_k_blocks`."""
    sort: Tensor = _BLOCKS.pick(backend).top_k_blocks(
        scores, k, temperature, causal, num_null, block_padding_mask
    )
    return sort


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sorted_k: Tensor,
    sorted_v: Tensor,
    combine: str,
    hidden: Tensor | None,
    sorted_hidden: Tensor | None,
    dropout_p: float,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.block_attention`."""
    module = _ATTENTION.pick(backend, _WITH_DROPOUT if dropout_p else PLAIN)
    y: Tensor = module.block_attention(
        q, k, v, sorted_k, sorted_v, combine, hidden, sorted_hidden, dropout_p
    )
    return y if y.dtype == q.dtype else y.to(q.dtype)


def sinkhorn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    *,
    dropout_p: float,
    backend: str = "auto",
    **settings: Any,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn_attention`; requires all keyword arguments."""
    settings["dropout_p"] = dropout_p
    # Under autocast the sort matrix is float32, because a sorting network adds a float32 bias. The
    # kernels need a single dtype, and torch would cast `sort` for the product with the blocks.
    sort = sort if sort.dtype == q.dtype else sort.to(q.dtype)
    available: tuple[str, ...] = _WITH_DROPOUT if dropout_p else PLAIN
    known = has_one_softmax(q, k, v, sort, settings)
    if known and cpu_attention.HAS_VECTORS and supports(q):
        available = (*available, "cpu")
    else:
        note_slow_call(q)
    if known and (q.is_cuda or INTERPRETED):
        available = with_triton_attention(available, q, sort, block_size)
    module = _ATTENTION.pick(backend, available)
    y: Tensor = module.sinkhorn_attention(q, k, v, sort, block_size, **settings)
    return y if y.dtype == q.dtype else y.to(q.dtype)


def _available(kernels_run: bool, x: Tensor) -> tuple[str, ...]:
    """List the available backends that support the arguments, slowest first."""
    if kernels_run:
        return (*PLAIN, "cpu")
    note_slow_call(x)
    return PLAIN
