"""Gradients of gradients for kernels that have none of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def second_order_gradients(
    formula: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of a plain formula that can be differentiated again.

    Each input comes to the formula over an edge of its own: two of them may be one tensor, or one
    may be made from another, and torch adds up what each of them is given here.

    Args:
        formula: the outputs for the inputs, in plain torch.
        inputs: of the kernel; None where there was none.
        grads: of the outputs; None for each that had none.

    Returns:
        A gradient for each input; None for each that takes none.
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
