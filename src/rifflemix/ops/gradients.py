"""Gradients of gradients for kernels that have none of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def second_order_gradients(
    outputs: Sequence[Tensor], grads: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that can be differentiated again; None for each input that takes none."""
    reached = [
        (output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None
    ]
    wanted = [value for value in inputs if value is not None and value.requires_grad]
    found = torch.autograd.grad(
        [output for output, _ in reached],
        wanted,
        [grad for _, grad in reached],
        create_graph=True,
        allow_unused=True,
    )
    gradients = iter(found)
    return [
        next(gradients) if value is not None and value.requires_grad else None for value in inputs
    ]
