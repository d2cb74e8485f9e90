"""Linear recurrence on a GPU: within chunks in parallel, then over the chunks of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from rifflemix.ops.recurrence import triton_gradient_kernels as gradient_kernels
from rifflemix.ops.recurrence import triton_kernels as kernels
from rifflemix.ops.recurrence.common import GPU_CHUNK, Terms, check_limits
from rifflemix.ops.recurrence.kernel_operators import (
    SevenTensors,
    chunk_bounds,
    count_sequences,
    define_operators,
    run,
)
from rifflemix.ops.triton_support import launch

# The sides of a matrix product are at least 16. A program keeps some columns of a state at a time.
_LEAST_SIDE, _MOST_VALUES = 16, 32


class _Layout(NamedTuple):
    """Programs and tiles of a call.

    Attributes:
        programs: programs with one chunk of one head each.
        places: first tokens of the chunks and ends of their sequences; None if not packed.
        bounds: first chunks of the sequences, and the number of chunks; None if not packed.
        sizes: heads, tokens, chunks of a sample, and features of keys, values and decays.
        tile: options of the kernels.
    """

    programs: int
    places: Tensor | None
    bounds: Tensor | None
    sizes: tuple[int, ...]
    tile: dict[str, int]

    @classmethod
    def of(cls, terms: Terms, offsets: Sequence[int] | None) -> _Layout:
        batch, heads, length, keys = terms.q.shape
        values = terms.v.shape[3]
        decays = 1 if terms.log_decay is None else terms.log_decay.shape[3]
        places = bounds = None
        chunk_list = chunk_bounds(length, 1, offsets, GPU_CHUNK)
        chunks = chunk_list[-1]
        if offsets is not None:
            firsts: list[int] = []
            ends: list[int] = []
            for start, end in pairwise(offsets):
                firsts += range(start, end, GPU_CHUNK)
                ends += [end] * -(-(end - start) // GPU_CHUNK)
            numbers = torch.tensor([*firsts, *ends, *chunk_list], dtype=torch.int64)
            places, bounds = numbers.to(terms.q.device).split([2 * chunks, len(chunk_list)])
        tile = {
            "SIZE": GPU_CHUNK,
            "KEYS": _side(keys),
            "VALUES": min(_side(values), _MOST_VALUES),
            "DECAYS": 1 if decays == 1 else _side(keys),
            "num_warps": 8,
            "num_stages": 1,
        }
        sizes = (heads, length, chunks, keys, values, decays)
        return cls(batch * chunks * heads, places, bounds, sizes, tile)


def _side(count: int) -> int:
    return max(_LEAST_SIDE, 1 << (int(count) - 1).bit_length())


def _rows(x: Tensor | None) -> Tensor | None:
    """Return tokens with contiguous (B, N, H, F) storage, copied only if necessary."""
    return None if x is None else x.transpose(1, 2).contiguous()


def _empty_matrices(terms: Terms, states: Tensor) -> Tensor:
    """Allocate M of the chunks, or its diagonals."""
    keys = terms.q.shape[3]
    return states.new_empty((*states.shape[:-1], keys if terms.b is not None else 1))


def _scan(
    terms: Terms,
    layout: _Layout,
    offsets: Sequence[int] | None,
    matrices: Tensor,
    states: Tensor,
    start: Tensor | None,
    end: Tensor,
    *,
    is_reversed: bool,
) -> None:
    """Compute the states before the chunks in place, or the gradients of the states after them."""
    heads, _, chunks, keys, values, _ = layout.sizes
    columns = layout.tile["VALUES"]
    launch(
        kernels.scan_chunks,
        count_sequences(terms.q, offsets) * heads * -(-values // columns), terms.q,
        matrices, states, None if start is None else start.contiguous(), end, layout.bounds,
        heads, chunks, keys, values, KEYS=layout.tile["KEYS"], VALUES=columns,
        DIAGONAL=terms.b is None, REVERSED=is_reversed, num_warps=4, num_stages=1,
    )  # fmt: skip


def _run_forward(
    terms: Terms, offsets: Sequence[int] | None, y: Tensor, last: Tensor, saved: Tensor
) -> None:
    check_limits(terms.q)
    layout = _Layout.of(terms, offsets)
    matrices = _empty_matrices(terms, saved)
    q, *others = map(_rows, terms[:-1])
    programs, places, _, sizes, tile = layout
    launch(kernels.sum_chunks, programs, terms.q, *others, places, matrices, saved, *sizes, **tile)
    _scan(terms, layout, offsets, matrices, saved, terms.first, last, is_reversed=False)
    launch(kernels.read_chunks, programs, terms.q, q, *others, places, saved, y, *sizes, **tile)


def _run_backward(
    terms: Terms,
    offsets: Sequence[int] | None,
    saved: Tensor,
    grad_y: Tensor,
    grad_last: Tensor | None,
    gradients: SevenTensors,
) -> None:
    check_limits(terms.q)
    layout = _Layout.of(terms, offsets)
    matrices, grad_states = _empty_matrices(terms, saved), torch.empty_like(saved)
    q, k, v, log_decay, a, b, grad = map(_rows, (*terms[:-1], grad_y))
    programs, places, _, sizes, tile = layout
    launch(
        gradient_kernels.sum_gradients, programs, terms.q,
        q, k, log_decay, a, b, grad, places, matrices, grad_states, *sizes, **tile,
    )  # fmt: skip
    *of_tokens, of_first = gradients
    _scan(terms, layout, offsets, matrices, grad_states, grad_last, of_first, is_reversed=True)
    # Each pair of keys on the left and on the right of an inner product, with their gradients.
    grad_q, grad_k, _, grad_decay, grad_a, grad_b = of_tokens
    pairs = [(q, k, grad_q, grad_k)]
    if b is not None:
        pairs.append((b, k, grad_b, grad_k))
        if a is not None:
            pairs += [(q, a, grad_q, grad_a), (b, a, grad_b, grad_a)]
    slopes = [saved.new_empty((programs, GPU_CHUNK, GPU_CHUNK)) for _ in pairs]
    launch(
        gradient_kernels.chunk_gradients, programs, terms.q,
        q, k, v, log_decay, a, b, grad, places, saved, grad_states, *of_tokens,
        *slopes, *[None] * (4 - len(slopes)), *sizes, **tile,
    )  # fmt: skip
    heads, length, chunks, keys, _, decays = sizes
    del tile["VALUES"]
    for (left, right, grad_left, grad_right), slope in zip(pairs, slopes, strict=True):
        launch(
            gradient_kernels.add_pair_gradients, programs, terms.q,
            left, right, log_decay, slope, places, grad_left, grad_right, grad_decay,
            heads, length, chunks, keys, decays, **tile,
        )  # fmt: skip


_forward, _backward = define_operators(
    "triton_linear_recurrence",
    _run_forward,
    _run_backward,
    chunk_size=GPU_CHUNK,
    dtypes=(torch.float32,),
)

linear_recurrence = partial(run, _forward)
"""See `rifflemix.ops.linear_recurrence`; it has no masks and returns the last state."""
