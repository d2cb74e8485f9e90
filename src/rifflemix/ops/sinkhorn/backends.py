"""Choice of the backend of a call: one of the modules reference, eager, cpu and triton.

The functions do not check their arguments, because mixers and public functions have checked them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import runs_kernels
from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.dropout.cpu import supports
from rifflemix.ops.native import TYPE_NAMES, note_slow_call
from rifflemix.ops.sinkhorn import (
    cpu,
    eager,
    eager_attention,
    reference,
)
from rifflemix.ops.sinkhorn.triton_limits import with_triton, with_triton_attention
from rifflemix.ops.triton_support import INTERPRETED

_RELU_EPSILON = 1e-6
_GUMBEL_EPSILON = 1e-6
# The reference backend does not support dropout.
WITH_DROPOUT = ("eager",)


def _load_triton() -> Any:
    from rifflemix.ops.sinkhorn import triton

    return triton


BLOCKS = Family(reference, eager, cpu=cpu, load_triton=_load_triton)
ATTENTION = Family(reference, eager_attention, cpu=cpu, load_triton=_load_triton)


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    causal: bool = False,
    final_row_norm: bool = True,
    block_padding_mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.sinkhorn`."""
    available: tuple[str, ...] = PLAIN
    if num_iterations > 0 and 0 not in log_scores.shape[-2:] and supports(log_scores):
        available = (*PLAIN, "cpu")
    else:
        note_slow_call(log_scores)
    if log_scores.is_cuda or INTERPRETED:
        available = with_triton(available, log_scores, num_iterations, causal)
    module = BLOCKS.pick(backend, available)
    return module.sinkhorn(log_scores, num_iterations, causal, final_row_norm, block_padding_mask)


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
    available: tuple[str, ...] = WITH_DROPOUT if dropout_p else PLAIN
    known = (  # the kernels have one softmax over sorted and local keys
        settings["combine"] == "concat"
        and settings["null_kv"] is None
        and not settings["sortcut"]
        and not settings["rotation"]
        and q.dtype == k.dtype == v.dtype
        and q.shape == k.shape == v.shape
        and 0 not in q.shape[1:]
    )
    # Inlined `supports`: a function call would slow down small inputs.
    on_cpu = cpu.HAS_VECTORS and q.device.type == "cpu" and q.dtype in TYPE_NAMES
    if known and on_cpu and runs_kernels():
        available = (*available, "cpu")
    else:
        note_slow_call(q)
    if known and (q.is_cuda or INTERPRETED):
        available = with_triton_attention(available, q, sort, block_size)
    module = ATTENTION.pick(backend, available)
    y: Tensor = module.sinkhorn_attention(q, k, v, sort, block_size, **settings)
    return y if y.dtype == q.dtype else y.to(q.dtype)
