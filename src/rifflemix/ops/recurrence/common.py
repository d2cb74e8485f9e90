"""Types and dtypes for all backends of this family, and the general form of all variants."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

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
