"""Argument checks of the recurrence family."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import (
    check_dense,
    check_float_dtype,
    check_offsets,
    check_padding_mask,
    check_tokens,
    shown,
)
from rifflemix.errors import bad_argument
from rifflemix.ops.recurrence.common import accumulation_dtype


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check queries, keys (B, H, N, D) and values (B, H, N, E); B and N may be 0."""
    check_tokens("q", q, rank=4, layout="(B, H, N, D)")
    if 0 in (q.shape[1], q.shape[3]):
        raise bad_argument("q", "at least one head and feature in (B, H, N, D)", tuple(q.shape))
    check_tokens("v", v, rank=4, layout="(B, H, N, E)")
    if v.shape[3] == 0:
        raise bad_argument("v", "at least one feature in (B, H, N, E)", tuple(v.shape))
    sizes = tuple(q.shape)
    _check_tensor("k", k, sizes, q, q.dtype)
    _check_tensor("v", v, (*sizes[:3], v.shape[3]), q, q.dtype)


def check_decay(log_decay: Tensor | None, q: Tensor) -> None:
    """Check that `log_decay` is None, (B, H, N) or (B, H, N, D)."""
    if log_decay is None:
        return
    is_vector = isinstance(log_decay, Tensor) and log_decay.dim() == 4
    _check_tensor("log_decay", log_decay, tuple(q.shape) if is_vector else tuple(q.shape[:3]), q)


def check_removal(beta: Tensor | None, erase: Any, q: Tensor) -> None:
    """Check that at most one of `beta` (B, H, N) and `erase` (a, b) is given."""
    if beta is not None:
        _check_tensor("beta", beta, tuple(q.shape[:3]), q)
    if erase is None:
        return
    if beta is not None:
        raise bad_argument("erase", "None with beta", "both", "write the delta rule as erase")
    if not isinstance(erase, tuple | list) or len(erase) != 2:
        raise bad_argument("erase", "a pair (a, b) of tensors (B, H, N, D)", shown(erase))
    for name, tensor in zip(("erase[0]", "erase[1]"), erase, strict=True):
        _check_tensor(name, tensor, tuple(q.shape), q)


def check_sequences(
    q: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor | None
) -> list[int] | None:
    """Check the mask or the offsets; return the offsets of a packed batch."""
    check_padding_mask(key_padding_mask, q, token_dim=2)
    if cu_seqlens is None:
        return None
    if key_padding_mask is not None:
        raise bad_argument(
            "key_padding_mask", "None with cu_seqlens", "a mask", "remove the padding"
        )
    if q.shape[0] != 1:
        raise bad_argument(
            "q", "shape (1, H, N, D) with cu_seqlens", tuple(q.shape), "concatenate all sequences"
        )
    return check_offsets(cu_seqlens, q.shape[2], q.device)


def check_state(state: Tensor | None, sequences: int, q: Tensor, v: Tensor) -> None:
    """Check that `state` is None or (sequences, H, D, E) in the dtype of a state."""
    if state is not None:
        shape = (sequences, q.shape[1], q.shape[3], v.shape[3])
        _check_tensor("initial_state", state, shape, q, accumulation_dtype(q.dtype))


def _check_tensor(
    name: str, x: Any, shape: tuple[int, ...], q: Tensor, dtype: torch.dtype | None = None
) -> None:
    """Check the shape, the device and the dtype of `x`: any floating-point dtype if None."""
    if not isinstance(x, Tensor):
        raise bad_argument(name, f"a tensor of shape {shape}", shown(x))
    check_dense(name, x)
    if tuple(x.shape) != shape:
        raise bad_argument(name, f"shape {shape}", tuple(x.shape))
    if x.device != q.device:
        raise bad_argument(name, f"device {q.device} of q", x.device)
    if dtype is None:
        check_float_dtype(name, x.dtype)
    elif x.dtype != dtype:
        raise bad_argument(name, f"dtype {dtype}", x.dtype, "cast it first")
