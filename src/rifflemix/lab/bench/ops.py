"""`rifflemix bench ops`: every operator and backend, compared with a copy and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix import ops
from rifflemix.errors import InputError
from rifflemix.lab.bench.gate import OPERATOR_TOLERANCE, Check, check, output_and_gradients
from rifflemix.lab.bench.rows import OPERATOR, Shape
from rifflemix.lab.bench.runner import (
    Built,
    Candidate,
    Group,
    Hooks,
    Settings,
    forward_and_backward,
    run_benchmark,
)

COPY, ATTENTION, SORT = "copy", "scaled_dot_product_attention", "torch.sort"
DEFAULT_SHAPES = (Shape(1, 1024, 512, 8), Shape(1, 4096, 512, 8))
BACKENDS = ("eager", "cpu", "triton")
_GATE_TOKENS, _REFERENCE_TOKENS, _LARGE_GROUP = 4096, 64, 64

# (backend, leaves) -> output
Run = Callable[[str, Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class Operator:
    """One operator with its settings.

    Attributes:
        name: name in tables.
        leaves: returns the shapes of the input tensors. They also receive gradients.
        prepare: returns the call for a shape and device.
        multiple: the number of tokens must be a multiple of this.
        ours: False for torch's own operators, without backends and correctness checks.
    """

    name: str
    leaves: Callable[[Shape], list[tuple[int, ...]]]
    prepare: Callable[[Shape, torch.device], Run]
    multiple: int = 1
    ours: bool = True


def run(
    shapes: Sequence[Shape] = DEFAULT_SHAPES,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """Measure every operator with every backend that this machine supports.

    Args:
        shapes: shapes to measure.
        settings: data type, device, number of timings and limits.
        hooks: callbacks for progress, stopping and saving.

    Returns:
        Result in the format of benchmarks/README.md. Rows have the kind "operator" and the passes
        "forward" and "forward_backward". Ratios are to "copy", "scaled_dot_product_attention",
        "torch.sort" and, for other backends, "eager".

    Raises:
        InputError: a setting out of range.
    """
    settings = settings or Settings()
    candidates = [
        _candidate(operator, backend, settings)
        for operator in OPERATORS
        for backend in (_backends(operator, settings) if operator.ours else (None,))
    ]
    references = tuple((OPERATOR, name) for name in (COPY, ATTENTION, SORT))
    groups = [Group(shape, candidates, references) for shape in shapes]
    return run_benchmark("ops", groups, settings, {}, hooks=hooks)


def _candidate(operator: Operator, backend: str | None, settings: Settings) -> Candidate:
    return Candidate(
        OPERATOR,
        operator.name,
        backend,
        build=partial(_build, operator, backend or "eager", settings),
        gate=partial(_gate, operator, backend, settings),
    )


def _build(operator: Operator, backend: str, settings: Settings, shape: Shape) -> Built:
    leaves = _leaves(operator, shape, settings)
    call = partial(operator.prepare(shape, settings.torch_device), backend, leaves)
    return Built(forward_and_backward(call, leaves))


def _gate(operator: Operator, backend: str | None, settings: Settings, shape: Shape) -> list[Check]:
    """Compare with the reference (few tokens) and the eager backend, in float64.

    Raises:
        InputError: the operator does not support this number of tokens.
    """
    if shape.tokens % operator.multiple:
        raise InputError(f"needs a multiple of {operator.multiple} tokens")
    if backend is None:
        return []
    long = replace(shape, batch=1, tokens=min(shape.tokens, _GATE_TOKENS))
    short = Shape(1, min(shape.tokens, _REFERENCE_TOKENS), 2 * shape.heads, shape.heads)
    return [
        _check(operator, backend, "reference", short, settings),
        _check(operator, backend, "eager", long, settings),
    ]


def _check(operator: Operator, backend: str, truth: str, shape: Shape, settings: Settings) -> Check:
    leaves = _leaves(operator, shape, settings)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    call = operator.prepare(shape, settings.torch_device)
    return check(
        f"{truth}, float64",
        shape,
        output_and_gradients(partial(call, backend, leaves), leaves),
        output_and_gradients(partial(call, truth, exact), exact),
        OPERATOR_TOLERANCE[settings.torch_dtype],
    )


def _leaves(operator: Operator, shape: Shape, settings: Settings) -> list[Tensor]:
    return [
        torch.randn(size, device=settings.torch_device).to(settings.torch_dtype).requires_grad_()
        for size in operator.leaves(shape)
    ]


def _backends(operator: Operator, settings: Settings) -> tuple[str, ...]:
    """Try each backend on a few tokens and return the supported ones."""
    shape = Shape(1, _REFERENCE_TOKENS, 16, 2)
    leaves = _leaves(operator, shape, settings)
    call = operator.prepare(shape, settings.torch_device)
    return tuple(backend for backend in BACKENDS if _is_there(call, backend, leaves))


def _is_there(call: Run, backend: str, leaves: Sequence[Tensor]) -> bool:
    """Check whether a backend accepts the arguments.

    A backend that crashes counts as available, so that its correctness check fails.
    """
    try:
        call(backend, leaves)
    except InputError:
        return False
    except Exception:
        return True
    return True


# The operators.


def _tokens(shape: Shape) -> list[tuple[int, ...]]:
    return [(shape.batch, shape.tokens, shape.channels)]


def _per_head(shape: Shape) -> tuple[int, ...]:
    return (shape.batch, shape.heads, shape.tokens, shape.channels // shape.heads)


def _qkv(shape: Shape) -> list[tuple[int, ...]]:
    return [_per_head(shape)] * 3


def _statistics(shape: Shape) -> list[tuple[int, ...]]:
    return [_per_head(shape), (shape.heads,)]


def _direct(call: Run) -> Callable[[Shape, torch.device], Run]:
    """Return the `prepare` of a call that is equal for all shapes."""
    return lambda shape, device: call


def _circular_shift(shape: Shape, device: torch.device) -> Run:
    steps = ops.shift_steps("linear", shape.tokens, shape.channels, device=device)
    return lambda backend, leaves: ops.circular_shift(leaves[0], steps, backend=backend)


def _group_sort(order: str, size: int, shape: Shape, device: torch.device) -> Run:
    groups = shape.tokens // size if size else 1
    return lambda backend, x: ops.group_sort(x[0], groups, order=order, backend=backend)


def _channel_permute(size: int, shape: Shape, device: torch.device) -> Run:
    steps = ops.shift_steps("linear", shape.tokens, shape.channels, device=device)
    groups = shape.tokens // size
    return lambda backend, x: ops.channel_permute(x[0], steps, groups, backend=backend)


def _rank_filter(window_size: int, shape: Shape, device: torch.device) -> Run:
    ranks = torch.arange(shape.channels, device=device) % window_size
    return lambda backend, leaves: ops.rank_filter(leaves[0], ranks, window_size, backend=backend)


def _block_size(shape: Shape) -> int:
    """Return the divisor of N closest to its square root.

    Closeness is measured as a ratio.
    """
    divisors = [b for b in range(1, shape.tokens + 1) if shape.tokens % b == 0]
    return min(divisors, key=lambda b: abs(math.log(b * b / shape.tokens)))


def _block_scores(shape: Shape) -> list[tuple[int, ...]]:
    blocks = shape.tokens // _block_size(shape)
    return [(shape.batch, shape.heads, blocks, blocks)]


def _sinkhorn_attention(shape: Shape, device: torch.device) -> Run:
    block = _block_size(shape)

    def call(backend: str, leaves: Sequence[Tensor]) -> Tensor:
        q, k, v, scores = leaves
        sort = scores.softmax(-1)  # sort matrices have no negative entries
        return ops.sinkhorn_attention(q, k, v, sort, block, backend=backend)

    return call


def _block_linear_leaves(shape: Shape) -> list[tuple[int, ...]]:
    width = shape.channels // shape.heads
    return [*_tokens(shape), (shape.heads, width, width)]


OPERATORS = (
    Operator(COPY, _tokens, _direct(lambda _, leaves: leaves[0].clone()), ours=False),
    Operator(
        ATTENTION,
        _qkv,
        _direct(lambda _, leaves: F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2])),
        ours=False,
    ),
    Operator(
        SORT, _tokens, _direct(lambda _, leaves: torch.sort(leaves[0], dim=1).values), ours=False
    ),
    Operator("circular_shift", _tokens, _circular_shift),
    Operator("group_sort, ascending", _tokens, partial(_group_sort, "ascending", 0)),
    Operator("group_sort, by reference", _tokens, partial(_group_sort, "reference", 0)),
    Operator("group_sort, G=2", _tokens, partial(_group_sort, "reference", 2), multiple=2),
    Operator(
        f"group_sort, G={_LARGE_GROUP}",
        _tokens,
        partial(_group_sort, "reference", _LARGE_GROUP),
        multiple=_LARGE_GROUP,
    ),
    Operator("channel_permute, G=2", _tokens, partial(_channel_permute, 2), multiple=2),
    Operator(
        "max_exchange",
        _tokens,
        _direct(lambda backend, leaves: ops.max_exchange(leaves[0], backend=backend)),
    ),
    Operator("rank_filter, G=2", _tokens, partial(_rank_filter, 2)),
    Operator("rank_filter, G=8", _tokens, partial(_rank_filter, 8)),
    Operator(
        "token_statistics",
        _statistics,
        _direct(lambda backend, leaves: ops.token_statistics(*leaves, backend=backend)),
    ),
    Operator(
        "causal_token_statistics",
        _statistics,
        _direct(lambda backend, leaves: ops.causal_token_statistics(*leaves, backend=backend)),
    ),
    Operator(
        "sinkhorn",
        _block_scores,
        _direct(lambda backend, leaves: ops.sinkhorn(leaves[0], 8, backend=backend)),
    ),
    Operator(
        "sinkhorn_attention", lambda shape: _qkv(shape) + _block_scores(shape), _sinkhorn_attention
    ),
    Operator(
        "block_linear",
        _block_linear_leaves,
        _direct(lambda backend, leaves: ops.block_linear(*leaves, backend=backend)),
    ),
)
