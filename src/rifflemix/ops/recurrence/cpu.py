"""Linear recurrence in compiled CPU kernels, one token after another.

The kernels are in ops/native/recurrence.cpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import runs_kernels
from rifflemix.errors import bad_argument
from rifflemix.ops.define import define
from rifflemix.ops.native import (
    TYPE_NAMES,
    instruction_level,
    library,
    raise_on_error,
    require_library,
)
from rifflemix.ops.recurrence import eager
from rifflemix.ops.recurrence.common import Erase, Terms

# Loaded once at import, because a traced graph must not contain the loading of a library.
_KERNELS = library()
# Without vector instructions, the products of torch are faster.
_CAN_RUN = instruction_level() >= 2
# Tokens between saved states; the same number is in ops/native/recurrence.cpp.
_CHUNK = 64
_DTYPES = (torch.float32, torch.float64)
_NONE, _DELTA, _ERASE = range(3)

_SevenTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def supports(q: Tensor) -> bool:
    """Return whether the kernels support tokens like `q` here.

    They do not during export, because an exported program must run without rifflemix.
    """
    return _CAN_RUN and q.device.type == "cpu" and q.dtype in TYPE_NAMES and runs_kernels()


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
    if not q.shape[2]:
        y, state = eager.in_chunks(*terms, offsets)
        return y.to(q.dtype), state
    y, state, _ = _forward(*terms, None if offsets is None else list(offsets))
    return y.to(q.dtype), state


def _chunk_bounds(length: int, sequences: int, offsets: Sequence[int] | None) -> list[int]:
    """Return the first chunk of each sequence, and the number of chunks."""
    if offsets is None:
        chunks = -(-length // _CHUNK)
        return [chunks * sequence for sequence in range(sequences + 1)]
    lengths = (end - start for start, end in pairwise(offsets))
    return list(accumulate((-(-n // _CHUNK) for n in lengths), initial=0))


def _chunks_per_row(length: int, offsets: Sequence[int] | None) -> int:
    return _chunk_bounds(length, 1, offsets)[-1]


def _sequences(q: Tensor, offsets: Sequence[int] | None) -> int:
    return q.shape[0] if offsets is None else len(offsets) - 1


def _empty_tokens(like: Tensor) -> Tensor:
    """Allocate (B, H, N, F) with (B, N, H, F) storage, so that merging heads needs no copy."""
    batch, heads, length, features = like.shape
    return like.new_empty((batch, length, heads, features)).transpose(1, 2)


def _empty_states(q: Tensor, v: Tensor, count: int) -> Tensor:
    return q.new_empty((count, q.shape[1], q.shape[3], v.shape[3]))


def _empty_outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    first: Tensor | None,
    offsets: Sequence[int] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    sequences = _sequences(q, offsets)
    chunks = _chunks_per_row(q.shape[2], offsets)
    # No unflatten: compilers would make a separate graph for a single chunk.
    saved = q.new_empty((q.shape[0], chunks, q.shape[1], q.shape[3], v.shape[3]))
    return _empty_tokens(v), _empty_states(q, v, sequences), saved


def _empty_gradients(
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
) -> _SevenTensors:
    decays = q if log_decay is None else log_decay
    tokens = (_empty_tokens(q), _empty_tokens(q), _empty_tokens(v), _empty_tokens(decays))
    return (
        *tokens,
        _empty_tokens(q),
        _empty_tokens(q),
        _empty_states(q, v, _sequences(q, offsets)),
    )


def _further_sizes(
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
    sequences = _sequences(q, offsets)
    per_head = log_decay is not None and log_decay.shape[3:] == (1,)
    chunks = _chunks_per_row(length, offsets)
    return {"S": sequences, "CHUNKS": chunks, "DECAYS": 1 if per_head else q.shape[3]}


def _call(
    kernel: str,
    rows: Sequence[Tensor | None],
    states: Sequence[Tensor | None],
    offsets: Sequence[int] | None,
) -> None:
    """Run a kernel.

    Args:
        kernel: "forward" or "backward".
        rows: q, k, v, decay, a, b, y or its gradient, and the gradients of the first six.
        states: states before the chunks, the first and the last states or their gradients.
        offsets: offsets of packed sequences.

    Raises:
        MemoryError: not enough memory for the call.
    """
    q, _, v, _, a, b, *_ = rows
    if q is None or v is None:
        return
    sequences, length = _sequences(q, offsets), q.shape[2]
    bounds = list(offsets or (0, length))
    chunks = _chunk_bounds(length, sequences, offsets)
    removal = _NONE if b is None else _DELTA if a is None else _ERASE
    sizes = (sequences, q.shape[1], q.shape[3], v.shape[3], offsets is not None, removal)
    layouts: list[int] = []
    for x in rows:  # a size of 1 may have any stride
        at = (0,) * 5 if x is None else (x.data_ptr(), *x.stride()[:3], int(x.shape[3] > 1))
        layouts += at
    function = getattr(
        _KERNELS or require_library(None),
        f"rifflemix_linear_recurrence_{kernel}_{TYPE_NAMES[q.dtype]}",
    )
    arrays = ((*sizes, torch.get_num_threads()), bounds, chunks, layouts)
    raise_on_error(
        function(
            *[(ctypes.c_int64 * len(array))(*array) for array in arrays],
            *[ctypes.c_void_p(None if x is None else x.data_ptr()) for x in states],
        )
    )


def _with_adjacent_features(*tensors: Tensor | None) -> list[Tensor | None]:
    return [
        x if x is None or x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in tensors
    ]


@define(
    "linear_recurrence_backward",
    shapes="q: B H N D, k: B H N D, v: B H N E, log_decay: B H N DECAYS, a: B H N D, b: B H N D, "
    "saved: B CHUNKS H D E, grad_y: B H N E, grad_last: S H D E",
    dtypes=_DTYPES,
    check=_further_sizes,
    like=_empty_gradients,
    device_types="cpu",
)
def _backward(
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
) -> _SevenTensors:
    """Compute the gradients of q, k, v, log_decay, a, b and the first states."""
    gradients = _empty_gradients(q, k, v, log_decay, a, b, saved, grad_y, grad_last, offsets)
    *of_tokens, of_first = gradients
    for gradient in of_tokens:
        gradient.zero_()
    decay = None if log_decay is None else log_decay.exp()
    rows = _with_adjacent_features(q, k, v, decay, a, b, grad_y)
    last = None if grad_last is None else grad_last.contiguous()
    _call("backward", [*rows, *of_tokens], [saved.contiguous(), of_first, last], offsets)
    if decay is not None:
        of_tokens[3].mul_(decay)
    return gradients


def _gradient(
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
    found = _backward(q, k, v, log_decay, a, b, saved, grad_y, grad_last, offsets)
    given = (q, k, v, log_decay, a, b, first)
    return tuple(None if x is None else gradient for x, gradient in zip(given, found, strict=True))


@define(
    "linear_recurrence",
    shapes="q: B H N D, k: B H N D, v: B H N E, log_decay: B H N DECAYS, a: B H N D, b: B H N D, "
    "first: S H D E",
    dtypes=_DTYPES,
    check=_further_sizes,
    like=_empty_outputs,
    outputs="y last | saved",
    saves="q k v log_decay a b first offsets saved",
    backward=_gradient,
    formula=eager.in_chunks,
    device_types="cpu",
)
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    first: Tensor | None,
    offsets: Sequence[int] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the output, the last states and the states before the chunks; see `Terms`."""
    y, last, saved = _empty_outputs(q, k, v, log_decay, a, b, first, offsets)
    decay = None if log_decay is None else log_decay.exp()
    rows = _with_adjacent_features(q, k, v, decay, a, b)
    start = None if first is None else first.contiguous()
    _call("forward", [*rows, y], [saved, start, last], offsets)
    return y, last, saved
