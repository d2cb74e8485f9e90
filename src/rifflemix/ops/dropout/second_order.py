"""Second-order gradients of torch's attention on a CPU (unsupported by torch).

The forward pass still uses torch's fused operator. A hook on its autograd node replaces the
gradients by the gradients of the plain formula, but only if `create_graph` is set.
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
    """Make the gradient of torch's attention differentiable, given its output `y`."""
    if torch.compiler.is_compiling() or not has_plain_autograd():
        return
    node = fused_attention_node(y)
    if node is not None:
        node.register_hook(_replace_gradients)


def _replace_gradients(
    gradients: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...] | None:
    """Compute differentiable gradients, or return None to keep torch's gradients."""
    if not torch.is_grad_enabled():
        return None
    try:
        q, k, v, mask, is_causal = fused_attention_inputs()
    except CheckpointError:  # torch does not support second order under checkpointing
        return None
    found = second_order_gradients(
        lambda q, k, v: (attend(q, k, v, mask, is_causal),), (q, k, v), grad_outputs[:1]
    )
    wanted = [new if old is not None else None for new, old in zip(found, gradients, strict=False)]
    return (*wanted, *gradients[3:])
