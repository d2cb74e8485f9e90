"""Types, dtypes and limits for all backends of this family; the general form of all variants."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support

accumulation_dtype = partial(torch.promote_types, torch.float32)
"""Dtype of the state for tokens of a dtype: float64 for float64 tokens, otherwise float32."""

Erase = tuple[Tensor, Tensor]
"""The vectors a and b (B, H, N, D) of the removal S - a (b^T S)."""


class Terms(NamedTuple):
    """The general form of all variants, in the dtype of the state.

    P = exp(log_decay) S, then S = P - a (b^T P) + k v^T. The delta rule has a = k (None here) and
    k multiplied by beta.

    Attributes:
        q: (B, H, N, D).
        k: (B, H, N, D), the key that is written.
        v: (B, H, N, E).
        log_decay: (B, H, N, 1 or D), or None.
        a: (B, H, N, D); None for the delta rule, or without removal.
        b: (B, H, N, D); None without removal.
        first: (B or sequences, H, D, E) state before the first token; None is zeros.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    a: Tensor | None
    b: Tensor | None
    first: Tensor | None

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        beta: Tensor | None,
        erase: Erase | None,
        initial_state: Tensor | None,
    ) -> Terms:
        """Convert the arguments of `rifflemix.ops.linear_recurrence`."""
        dtype = accumulation_dtype(q.dtype)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        a, b = (None, None) if erase is None else (erase[0].to(dtype), erase[1].to(dtype))
        if beta is not None:
            b, k = k, beta.to(dtype).unsqueeze(-1) * k
        if log_decay is not None:
            log_decay = log_decay.to(dtype)
            if log_decay.dim() == 3:
                log_decay = log_decay.unsqueeze(-1)
        return cls(q, k, v, log_decay, a, b, initial_state)


GPU_CHUNK = 32
"""Tokens of a chunk of the GPU kernels."""
_GPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# A program keeps all features of the keys of a chunk. `_SHARED` is the shared memory of an H100 in
# bytes; on GPUs with less, the keys have fewer features.
_MAX_KEYS, _MAX_KEYS_ON_SMALLER, _SHARED = 128, 64, 227 * 1024


def with_triton(names: tuple[str, ...], q: Tensor) -> tuple[str, ...]:
    """Add "triton" to the backends if its kernels support queries like `q`."""
    if q.dtype not in _GPU_DTYPES:
        return names
    return triton_support.with_triton(names, q, q.shape[3] <= _max_keys(q))


def check_limits(q: Tensor) -> None:
    """Check that the GPU kernels support queries (B, H, N, D)."""
    most = _max_keys(q)
    if q.shape[3] > most:
        raise bad_argument("q", f"at most {most} features", q.shape[3])
    triton_support.check_device(q)


def _max_keys(q: Tensor) -> int:
    has_room = triton_support.shared_memory(q.device) >= _SHARED
    return _MAX_KEYS if has_room else _MAX_KEYS_ON_SMALLER
