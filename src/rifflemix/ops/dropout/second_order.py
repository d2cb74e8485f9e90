"""Gradients of gradients of torch's attention on a CPU, which torch itself has not.

Its fused operator stays as it is. A hook on its node looks on, and only where somebody asked for a
graph of the gradient does it hand on gradients of the plain formula instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from rifflemix.compat import fused_attention_inputs, fused_attention_node, has_plain_autograd
from rifflemix.ops.dropout.eager import attend
from rifflemix.ops.gradients import second_order_gradients


def differentiate_again(y: Tensor) -> None:
    """Make the gradient of `y`, the output of torch's attention, differentiable."""
    if torch.compiler.is_compiling() or not has_plain_autograd():
        return
    node = fused_attention_node(y)
    if node is not None:
        node.register_hook(_replace_gradients)


def _replace_gradients(
    gradients: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...] | None:
    """Gradients of queries, keys and values with a graph; None to keep those without one."""
    if not torch.is_grad_enabled():
        return None
    try:
        q, k, v, mask, is_causal = fused_attention_inputs()
    except CheckpointError:  # it recomputes inputs once, for the node: torch refuses a second order
        return None
    found = second_order_gradients(
        lambda q, k, v: (attend(q, k, v, mask, is_causal),), (q, k, v), grad_outputs[:1]
    )
    wanted = [new if old is not None else None for new, old in zip(found, gradients, strict=False)]
    return (*wanted, *gradients[3:])
