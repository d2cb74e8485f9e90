"""Literal implementation of the equations: one token at a time, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from rifflemix.compat import widest_float
from rifflemix.ops.recurrence.common import Erase, accumulation_dtype


def linear_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    erase: Erase | None,
    initial_state: Tensor | None,
    offsets: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """Run `rifflemix.ops.linear_recurrence`; return the output and the last state."""
    batch, heads, length, size = q.shape
    wide = widest_float(q.device)
    sequences = batch if offsets is None else len(offsets) - 1
    first = q.new_zeros((sequences, heads, size, v.shape[3]), dtype=wide)
    if initial_state is not None:
        first = initial_state.to(wide)
    a, b = (None, None) if erase is None else erase
    gates = [None if x is None else x.to(wide) for x in (log_decay, beta, a, b)]
    q_wide, k_wide, v_wide = q.to(wide), k.to(wide), v.to(wide)
    ys, states = [], []
    for sequence, (start, end) in enumerate(pairwise(offsets or (0, length))):
        state = first if offsets is None else first[sequence].unsqueeze(0)
        for at in range(start, end):
            token = [None if x is None else x[:, :, at] for x in gates]
            y, state = step(state, q_wide[:, :, at], k_wide[:, :, at], v_wide[:, :, at], *token)
            ys.append(y)
        states.append(state)
    y = torch.stack(ys, 2) if ys else v_wide
    return y.to(q.dtype), torch.cat(states).to(accumulation_dtype(q.dtype))


def step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Process a token of each sequence.

    Args:
        state: (B, H, D, E) state before the token.
        q: (B, H, D), as k, a and b.
        k: key.
        v: (B, H, E).
        log_decay: (B, H) or (B, H, D).
        beta: (B, H).
        a: change of the state by the removal.
        b: reading key of the removal.

    Returns:
        The output (B, H, E) and the next state.
    """
    if log_decay is not None:
        per_feature = log_decay if log_decay.dim() == 3 else log_decay.unsqueeze(-1)
        state = per_feature.exp().unsqueeze(-1) * state
    written = k if beta is None else beta.unsqueeze(-1) * k
    if beta is not None:
        a, b = written, k
    if a is not None and b is not None:
        state = state - _outer(a, _read(state, b))
    state = state + _outer(written, v)
    return _read(state, q), state


def _outer(column: Tensor, row: Tensor) -> Tensor:
    return column.unsqueeze(-1) * row.unsqueeze(-2)


def _read(state: Tensor, key: Tensor) -> Tensor:
    """Compute S^T key: (B, H, D, E), (B, H, D) -> (B, H, E)."""
    return (state * key.unsqueeze(-1)).sum(-2)
