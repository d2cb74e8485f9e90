"""Linear recurrence in compiled CPU kernels, one token after another.

The kernels are in ops/native/recurrence.cpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from rifflemix.compat import runs_kernels
from rifflemix.ops.native import (
    TYPE_NAMES,
    instruction_level,
    library,
    raise_on_error,
    require_library,
)
from rifflemix.ops.recurrence.common import Terms
from rifflemix.ops.recurrence.kernel_operators import (
    SevenTensors,
    chunk_bounds,
    count_sequences,
    define_operators,
    run,
)

# Loaded once at import, because a traced graph must not contain the loading of a library.
_KERNELS = library()
# Without vector instructions, the products of torch are faster.
_CAN_RUN = instruction_level() >= 2
# Tokens between saved states; the same number is in ops/native/recurrence.cpp.
_CHUNK = 64
_NONE, _DELTA, _ERASE = range(3)


def supports(q: Tensor) -> bool:
    """Return whether the kernels support tokens like `q` here.

    They do not during export, because an exported program must run without rifflemix.
    """
    return _CAN_RUN and q.device.type == "cpu" and q.dtype in TYPE_NAMES and runs_kernels()


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
    sequences, length = count_sequences(q, offsets), q.shape[2]
    bounds = list(offsets or (0, length))
    chunks = chunk_bounds(length, sequences, offsets, _CHUNK)
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


def _run_forward(
    terms: Terms, offsets: Sequence[int] | None, y: Tensor, last: Tensor, saved: Tensor
) -> None:
    q, k, v, log_decay, a, b, first = terms
    decay = None if log_decay is None else log_decay.exp()
    rows = _with_adjacent_features(q, k, v, decay, a, b)
    start = None if first is None else first.contiguous()
    _call("forward", [*rows, y], [saved, start, last], offsets)


def _run_backward(
    terms: Terms,
    offsets: Sequence[int] | None,
    saved: Tensor,
    grad_y: Tensor,
    grad_last: Tensor | None,
    gradients: SevenTensors,
) -> None:
    q, k, v, log_decay, a, b, _ = terms
    *of_tokens, of_first = (gradient if gradient.numel() else None for gradient in gradients)
    decay = None if log_decay is None else log_decay.exp()
    rows = _with_adjacent_features(q, k, v, decay, a, b, grad_y)
    last = None if grad_last is None else grad_last.contiguous()
    _call("backward", [*rows, *of_tokens], [saved, of_first, last], offsets)
    if decay is not None:
        gradients[3].mul_(decay)


_forward, _backward = define_operators(
    "linear_recurrence",
    _run_forward,
    _run_backward,
    chunk_size=_CHUNK,
    dtypes=(torch.float32, torch.float64),
    device_types="cpu",
)

linear_recurrence = partial(run, _forward)
"""See `rifflemix.ops.linear_recurrence`; it has no masks and returns the last state."""
