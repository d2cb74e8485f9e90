"""The public function of this family: it checks its arguments and calls a backend."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rifflemix.checks import check_bool
from rifflemix.ops.recurrence import backends
from rifflemix.ops.recurrence.arguments import (
    check_decay,
    check_qkv,
    check_removal,
    check_sequences,
    check_state,
)
from rifflemix.ops.recurrence.common import Erase


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
    check_qkv(q, k, v)
    check_decay(log_decay, q)
    check_removal(beta, erase, q)
    offsets = check_sequences(q, key_padding_mask, cu_seqlens)
    check_state(initial_state, q.shape[0] if offsets is None else len(offsets) - 1, q, v)
    check_bool("return_state", return_state)
    y, state = backends.linear_recurrence(
        q, k, v, log_decay, beta, erase, initial_state, key_padding_mask, offsets, backend
    )
    return (y, state) if return_state else y
