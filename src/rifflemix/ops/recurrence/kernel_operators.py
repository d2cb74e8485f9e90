"""Arguments, outputs and gradients shared by the CPU and GPU kernels of the recurrence.

The kernels save the state before each chunk of tokens. The plain formula of the eager backend
computes second-order gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.define import Operator, define
from rifflemix.ops.recurrence import eager
from rifflemix.ops.recurrence.common import Erase, Terms

SevenTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
ThreeTensors = tuple[Tensor, Tensor, Tensor]

_SHAPES = "q: B H N D, k: B H N D, v: B H N E, log_decay: B H N DECAYS, a: B H N D, b: B H N D, "


def run(
    forward: Operator,
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
    if not q.shape[2]:
        y, state = eager.in_chunks(*terms, offsets)
        return y.to(q.dtype), state
    y, state, _ = forward(*terms, None if offsets is None else list(offsets))
    return y.to(q.dtype), state


def chunk_bounds(
    length: int, sequences: int, offsets: Sequence[int] | None, size: int
) -> list[int]:
    """Return the first chunk of each sequence, and the number of chunks."""
    if offsets is None:
        chunks = -(-length // size)
        return [chunks * sequence for sequence in range(sequences + 1)]
    lengths = (end - start for start, end in pairwise(offsets))
    return list(accumulate((-(-n // size) for n in lengths), initial=0))


def count_sequences(q: Tensor, offsets: Sequence[int] | None) -> int:
    """Return the number of sequences in a batch or a packed batch."""
    return q.shape[0] if offsets is None else len(offsets) - 1


def define_operators(
    name: str,
    forward: Callable[..., None],
    backward: Callable[..., None],
    *,
    chunk_size: int,
    dtypes: Collection[torch.dtype],
    device_types: str | None = None,
) -> tuple[Operator, Operator]:
    """Register the recurrence with the kernels of a device, and its gradient.

    Args:
        name: name of the operator. The name of the gradient ends with "_backward".
        forward: function of `Terms`, the offsets and three tensors to fill: the output, the last
            states, and the states before the chunks (B, chunks, H, D, E).
        backward: function of `Terms`, the offsets, the states before the chunks, the gradients of
            the output and of the last states, and seven tensors to fill: the gradients of `Terms`.
            The last gradient of the forward pass can be None.
        chunk_size: tokens of a chunk.
        dtypes: dtypes of the tensors.
        device_types: the device that the kernels support; None for every device.
    """

    def further_sizes(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        *others: Any,
    ) -> dict[str, int]:
        """Check the offsets; return the sequences, the chunks and the decays of a head."""
        offsets, length = others[-1], q.shape[2]
        if a is not None and b is None:
            raise bad_argument("b", "a tensor with a", None)
        if offsets is not None:
            is_sorted = all(start <= end for start, end in pairwise(offsets))
            is_whole = len(offsets) > 1 and (offsets[0], offsets[-1]) == (0, length)
            if q.shape[0] != 1 or not (is_sorted and is_whole):
                raise bad_argument("offsets", f"increasing numbers from 0 to {length}", offsets)
        per_head = log_decay is not None and log_decay.shape[3:] == (1,)
        return {
            "S": count_sequences(q, offsets),
            "CHUNKS": chunk_bounds(length, 1, offsets, chunk_size)[-1],
            "DECAYS": 1 if per_head else q.shape[3],
        }

    def empty_outputs(
        q: Tensor, k: Tensor, v: Tensor, log_decay: Any, a: Any, b: Any, first: Any, offsets: Any
    ) -> ThreeTensors:
        chunks = chunk_bounds(q.shape[2], 1, offsets, chunk_size)[-1]
        # No unflatten: compilers would make a separate graph for a single chunk.
        saved = q.new_empty((q.shape[0], chunks, q.shape[1], q.shape[3], v.shape[3]))
        return _empty_tokens(v), _empty_states(q, v, offsets), saved

    def empty_gradients(
        q: Tensor, k: Tensor, v: Tensor, log_decay: Any, a: Any, b: Any, *others: Any
    ) -> SevenTensors:
        terms = (q, k, v, log_decay, a, b)
        tokens = (q.new_empty(0) if x is None else _empty_tokens(x) for x in terms)
        return (*tokens, _empty_states(q, v, others[-1]))  # type: ignore[return-value]

    @define(
        f"{name}_backward",
        shapes=f"{_SHAPES}saved: B CHUNKS H D E, grad_y: B H N E, grad_last: S H D E",
        dtypes=dtypes,
        check=further_sizes,
        like=empty_gradients,
        device_types=device_types,
    )
    def run_backward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        saved: Tensor,
        grad_y: Tensor,
        grad_last: Tensor | None,
        offsets: Sequence[int] | None,
    ) -> SevenTensors:
        """Compute the gradients of q, k, v, log_decay, a, b and the first states.

        The gradients of absent tensors have no values.
        """
        gradients = empty_gradients(q, k, v, log_decay, a, b, offsets)
        terms = Terms(q, k, v, log_decay, a, b, None)
        backward(terms, offsets, saved.contiguous(), grad_y, grad_last, gradients)
        return gradients

    def gradient(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        first: Tensor | None,
        offsets: Sequence[int] | None,
        saved: Tensor,
        grad_y: Tensor | None,
        grad_last: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        grad_y = torch.zeros_like(v) if grad_y is None else grad_y
        found = run_backward(q, k, v, log_decay, a, b, saved, grad_y, grad_last, offsets)
        given = (q, k, v, log_decay, a, b, first)
        return tuple(None if x is None else slope for x, slope in zip(given, found, strict=True))

    @define(
        name,
        shapes=f"{_SHAPES}first: S H D E",
        dtypes=dtypes,
        check=further_sizes,
        like=empty_outputs,
        outputs="y last | saved",
        saves="q k v log_decay a b first offsets saved",
        backward=gradient,
        formula=eager.in_chunks,
        device_types=device_types,
    )
    def run_forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        first: Tensor | None,
        offsets: Sequence[int] | None,
    ) -> ThreeTensors:
        """Compute the output, the last states and the states before the chunks; see `Terms`."""
        outputs = empty_outputs(q, k, v, log_decay, a, b, first, offsets)
        forward(Terms(q, k, v, log_decay, a, b, first), offsets, *outputs)
        return outputs

    return run_forward, run_backward


def _empty_tokens(like: Tensor) -> Tensor:
    """Allocate (B, H, N, F) with (B, N, H, F) storage, so that merging heads needs no copy."""
    batch, heads, length, features = like.shape
    return like.new_empty((batch, length, heads, features)).transpose(1, 2)


def _empty_states(q: Tensor, v: Tensor, offsets: Sequence[int] | None) -> Tensor:
    return q.new_empty((count_sequences(q, offsets), q.shape[1], q.shape[3], v.shape[3]))
