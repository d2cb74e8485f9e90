"""One call of an operator, and its results with each backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from attack_tensors import Layout, plain
from torch import Tensor

from rifflemix import ops

BACKENDS = ("reference", "eager", "cpu", "triton", "auto")


@dataclass(frozen=True)
class Call:
    """A call of an operator that runs with each backend.

    Attributes:
        function: operator with the arguments `tensors`, `settings` and `backend`, in this order.
        tensors: inputs that need gradients.
        settings: other arguments, by name.
        layouts: memory layout of each of `tensors`.
        is_literal: whether the inputs are small enough for the reference.
        seed: seed of torch's generator at the start.
        terms: size of the terms that a gradient sums.
    """

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    layouts: tuple[Layout, ...] = ()
    is_literal: bool = True
    seed: int = 0
    terms: float = 1.0

    def backends(self) -> tuple[str, ...]:
        return BACKENDS if self.is_literal else BACKENDS[1:]

    def in_float64(self) -> Call:
        """Return the call with all floating-point tensors in float64."""
        return replace(self, tensors=_widened(self.tensors), settings=_widened(self.settings))


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, ops.StatisticsState):
        return ops.StatisticsState(*map(_widened, value))
    if isinstance(value, tuple):
        return tuple(map(_widened, value))
    if isinstance(value, dict):
        return {key: _widened(inner) for key, inner in value.items()}
    return value


def outputs_and_gradients(call: Call, backend: str) -> list[Tensor]:
    """Return the outputs, then the gradients of a randomly weighted sum of them."""
    leaves = [
        x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in call.tensors
    ]
    lays = call.layouts or (plain,) * len(leaves)
    inputs = [lay(leaf) for lay, leaf in zip(lays, leaves, strict=True)]
    torch.manual_seed(call.seed)
    outputs = list(_flat(call.function(*inputs, **call.settings, backend=backend)))
    weights = torch.Generator().manual_seed(call.seed + 1)
    losses = []
    for y in outputs:
        weight = torch.randn(y.shape, generator=weights, dtype=torch.float64).to(y.dtype)
        if y.requires_grad:
            # Like the gradient of a sum: one expanded value with strides of zero.
            weight = weight.flatten()[0].expand_as(y) if call.seed % 3 == 1 else weight
            losses.append((y, weight))
    found = [y.detach() for y in outputs]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not losses:  # outputs that depend on no input have zero gradients
        return found + [torch.zeros_like(leaf) for leaf in wanted]
    ys, cotangents = zip(*losses, strict=True)
    return found + list(torch.autograd.grad(ys, wanted, cotangents, materialize_grads=True))


def _flat(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, tuple):
        for inner in outputs:
            yield from _flat(inner)
