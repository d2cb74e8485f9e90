"""Linear recurrence in plain torch: matrix products within chunks, a loop over chunks.

Within a chunk, let G[t] be the sum of the logarithms of the decays up to token t, and S the state
before the chunk. The removal at token t reads

    u[t] = b[t]^T (exp(G[t]) S + sum over s < t of exp(G[t] - G[s]) (k[s] v[s]^T - a[s] u[s]^T)),

a triangular system for all u of the chunk. Its solution is linear in S (the UT transform), so the
state after the chunk is M S + A with a matrix M and an addition A per chunk. All exponents are
differences between two tokens of a chunk, the later minus the earlier, so no decay overflows.

Sources: DeltaNet, section 3; Gated Delta Networks, section 3.3; GLA, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rifflemix.compat import as_constant, is_known, leaves_package
from rifflemix.ops.recurrence.chunks import Chunks, Decay, inverse
from rifflemix.ops.recurrence.common import Erase, Terms


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
    terms = Terms.of(q, k, v, log_decay, beta, erase, initial_state)
    y, state = in_chunks(*terms, offsets)
    return y.to(q.dtype), state


def in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    first: Tensor | None,
    offsets: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """Compute the outputs and the last state from `Terms`."""
    length = q.shape[2]
    if is_known(length) or not leaves_package():
        length = as_constant(length)  # a compiled graph fixes this length
    if first is None:
        sequences = q.shape[0] if offsets is None else len(offsets) - 1
        first = q.new_zeros((sequences, q.shape[1], q.shape[3], v.shape[3]))
    if is_known(length) and not length:
        return v.clone(), first.clone()
    chunks = Chunks.of(length, offsets, q.device)
    decay = None if log_decay is None else Decay(chunks.split(log_decay))
    q, k, v = chunks.split(q), chunks.split(k), chunks.split(v)
    if b is None:
        y, state = _without_removal(q, k, v, decay, first, chunks)
    else:
        a = k if a is None else chunks.split(a)
        y, state = _with_removal(q, k, v, a, chunks.split(b), decay, first, chunks)
    return chunks.join(y), state


def _without_removal(
    q: Tensor, k: Tensor, v: Tensor, decay: Decay | None, first: Tensor, chunks: Chunks
) -> tuple[Tensor, Tensor]:
    """Compute the outputs in chunks (B, H, chunks, L, E), and the last state."""
    ((within,),) = _products(decay, [q], [k])
    if decay is None:
        states, last = chunks.states(None, k.mT @ v, first, by_matrix=False)
        return within @ v + q @ states, last
    addition = (k * decay.until_end()).mT @ v
    states, last = chunks.states(decay.whole(), addition, first, by_matrix=False)
    return within @ v + (q * decay.since_start()) @ states, last


def _with_removal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    decay: Decay | None,
    first: Tensor,
    chunks: Chunks,
) -> tuple[Tensor, Tensor]:
    """Compute the outputs in chunks (B, H, chunks, L, E), and the last state.

    The delta rule has a = k, so the removed and the written values are one sum.
    """
    is_delta = a is k
    rights = [a] if is_delta else [a, k]
    (read_a, *read_k), (b_a, *b_k) = _products(decay, [q, b], rights)
    ends, starts = a, b
    if decay is not None:
        ends, starts = a * decay.until_end(), b * decay.since_start()
        q = q * decay.since_start()
    values = v if is_delta else -(b_k[0].tril(-1) @ v)
    both = inverse(b_a) @ torch.cat((starts, values), -1)
    by_state, alone = both.split([b.shape[-1], v.shape[-1]], -1)
    addition = ends.mT @ alone
    if not is_delta:
        addition = addition + (k if decay is None else k * decay.until_end()).mT @ v
    matrix = _identity(b, decay) - ends.mT @ by_state
    states, last = chunks.states(matrix, addition, first, by_matrix=True)
    y = q @ states + read_a @ (alone - by_state @ states)
    return y if is_delta else y + read_k[0] @ v, last


def _products(decay: Decay | None, lefts: list[Tensor], rights: list[Tensor]) -> list[list[Tensor]]:
    if decay is None:
        return [[(left @ right.mT).tril() for right in rights] for left in lefts]
    return decay.products(lefts, rights)


def _identity(like: Tensor, decay: Decay | None) -> Tensor:
    """Return diag(decay of the chunk), broadcast over the chunks."""
    eye = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return eye if decay is None else eye * decay.whole()
