"""Second-order gradients for kernels that have no double-backward implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def second_order_gradients(
    formula: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Compute gradients of a formula that can be differentiated again.

    Each input enters the formula through a separate view. Two inputs may be the same tensor, or one
    input may be computed from another. Torch then adds up the gradients that are returned here.

    Args:
        formula: function in plain torch that computes the outputs from the inputs.
        inputs: inputs of the kernel; None for an absent input.
        grads: gradients of the outputs; None for an output without a gradient.

    Returns:
        One gradient per input; None for an input that does not require a gradient.
    """
    apart = [x.view_as(x) if x is not None and x.requires_grad else x for x in inputs]
    reached = [
        (output, grad)
        for output, grad in zip(formula(*apart), grads, strict=True)
        if grad is not None
    ]
    found = torch.autograd.grad(
        [output for output, _ in reached],
        [x for x in apart if x is not None and x.requires_grad],
        [grad for _, grad in reached],
        create_graph=True,
        allow_unused=True,
    )
    gradients = iter(found)
    return [next(gradients) if x is not None and x.requires_grad else None for x in apart]
