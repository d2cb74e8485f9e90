"""The public function of this family: it checks its arguments and calls a backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import (
    check_bool,
    check_dense,
    check_float_dtype,
    check_offsets,
    check_padding_mask,
    check_tokens,
    shown,
)
from rifflemix.errors import bad_argument
from rifflemix.ops.recurrence import backends
from rifflemix.ops.recurrence.common import Erase, accumulation_dtype


def linear_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    erase: Erase | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    key_padding_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Any:
    """Read a matrix state that decays, forgets and is written at every token.

    Every head has a state S (D, E). A token updates the state in this order and then reads it:

        S <- diag(exp(log_decay)) S            decay
        S <- S - beta k (k^T S)                removal with beta (delta rule), or
        S <- S - a (b^T S)                     removal with erase = (a, b)
        S <- S + k v^T                         write (beta k v^T with beta)
        y  = S^T q                             read

    Time is O(N D E) and memory is linear in N. Gradients flow to all tensors.

    Variants: no options is linear attention; a scalar `log_decay` is RetNet and Mamba-2; a vector
    `log_decay` is GLA; `beta` is DeltaNet; both are Gated DeltaNet. In RWKV-7 the removal reads
    the state before the decay: use a = kappa * rate and b = kappa * exp(-log_decay).

    Args:
        q: (B, H, N, D) queries. They are not scaled.
        k: (B, H, N, D) keys. They are not normalized: with `beta` and keys of unit norm, a beta
            in [0, 2] keeps the state bounded.
        v: (B, H, N, E) values.
        log_decay: (B, H, N) or (B, H, N, D) logarithm of the decay, usually at most 0. -inf resets.
        beta: (B, H, N) step size of the delta rule.
        erase: (a, b), each (B, H, N, D); not with `beta`.
        initial_state: (B, H, D, E) state before the first token, in the dtype of the state.
        return_state: also return the state after the last token.
        key_padding_mask: (B, N) bool, True = padding. A padded token does not change the state, and
            its output is 0.
        cu_seqlens: (S + 1,) int32 or int64, offsets of S sequences in a packed batch with B = 1.
            States are then (S, H, D, E).
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        y (B, H, N, E) in q's dtype, or (y, state). The state is float32, or float64 for float64
        tokens.

    Raises:
        InputError: wrong shape, dtype, device or combination.

    Sources: GLA, equation (3); DeltaNet, section 2.2; Yang et al. 2025, "Gated Delta Networks",
    equation (10); RWKV-7, equation (17).

    Example:
        >>> import torch, rifflemix as rm
        >>> q, k, v = torch.randn(3, 1, 2, 16, 4)
        >>> log_decay = torch.full((1, 2, 16), -0.1)
        >>> y, state = rm.ops.linear_recurrence(q, k, v, log_decay=log_decay, return_state=True)
        >>> y.shape, state.shape
        (torch.Size([1, 2, 16, 4]), torch.Size([1, 2, 4, 4]))
    """
    _check_qkv(q, k, v)
    _check_decay(log_decay, q)
    _check_removal(beta, erase, q)
    offsets = _check_sequences(q, key_padding_mask, cu_seqlens)
    _check_state(initial_state, q.shape[0] if offsets is None else len(offsets) - 1, q, v)
    check_bool("return_state", return_state)
    y, state = backends.linear_recurrence(
        q, k, v, log_decay, beta, erase, initial_state, key_padding_mask, offsets, backend
    )
    return (y, state) if return_state else y


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
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


def _check_decay(log_decay: Tensor | None, q: Tensor) -> None:
    """Check that `log_decay` is None, (B, H, N) or (B, H, N, D)."""
    if log_decay is None:
        return
    is_vector = isinstance(log_decay, Tensor) and log_decay.dim() == 4
    _check_tensor("log_decay", log_decay, tuple(q.shape) if is_vector else tuple(q.shape[:3]), q)


def _check_removal(beta: Tensor | None, erase: Any, q: Tensor) -> None:
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


def _check_sequences(
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


def _check_state(state: Tensor | None, sequences: int, q: Tensor, v: Tensor) -> None:
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
