"""Second-order gradients for kernels that have no double-backward implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def second_order_gradients(
    formula: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Any],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Compute gradients of a formula that can be differentiated again.

    Each input enters the formula through a separate view. Two inputs may be the same tensor, or one
    input may be computed from another. Torch then adds up the gradients that are returned here.

    Args:
        formula: function in plain torch that computes the outputs from the inputs.
        inputs: inputs of the kernel: tensors, numbers, and None for an absent input.
        grads: gradients of the outputs; None for an output without a gradient.

    Returns:
        One gradient per input; None for an input that does not require a gradient.
    """
    needs = [isinstance(x, Tensor) and x.requires_grad for x in inputs]
    apart = [x.view_as(x) if need else x for x, need in zip(inputs, needs, strict=True)]
    found = formula(*apart)
    outputs = (found,) if isinstance(found, Tensor) else found
    reached = [(y, grad) for y, grad in zip(outputs, grads, strict=True) if grad is not None]
    gradients = iter(
        torch.autograd.grad(
            [output for output, _ in reached],
            [x for x, need in zip(apart, needs, strict=True) if need],
            [grad for _, grad in reached],
            create_graph=True,
            allow_unused=True,
        )
    )
    return [next(gradients) if need else None for need in needs]
