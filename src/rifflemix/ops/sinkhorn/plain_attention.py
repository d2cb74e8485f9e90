"""What the compiled kernels of Sparse Sinkhorn attention have in common: what they take and make.

They know neither masks nor causal forms, SortCut or dropout. A gradient of a gradient is left to
the eager formulas.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rifflemix.ops.gradients import second_order_gradients
from rifflemix.ops.operands import check_count, check_operand, refuse_values
from rifflemix.ops.sinkhorn import eager_attention

_PLAIN: dict[str, Any] = {
    "combine": "concat",
    "sortcut": 0,
    "mixture": False,
    "causal": False,
    "key_padding_mask": None,
    "null_kv": None,
    "rotation": 0,
    "dropout_p": 0.0,
}
"""The settings of `sinkhorn_attention` that the kernels know."""


def is_plain(q: Tensor, k: Tensor, v: Tensor, sort: Tensor, settings: dict[str, Any]) -> bool:
    """Whether the kernels know this; torch.compile cannot trace a comparison with `_PLAIN`."""
    return (
        settings["combine"] == "concat"
        and settings["key_padding_mask"] is None
        and settings["null_kv"] is None
        and not settings["sortcut"]
        and not settings["mixture"]
        and not settings["causal"]
        and not settings["rotation"]
        and not settings["dropout_p"]
        and q.dtype == k.dtype == v.dtype == sort.dtype
        and q.shape == k.shape == v.shape
        and 0 not in q.shape[1:]
    )


def check(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, dtypes: Collection[torch.dtype]
) -> None:
    """Raise unless the tensors fit each other, with something along all sizes but the batch."""
    if q.dim() != 4 or q.dtype not in dtypes or 0 in q.shape[1:]:
        refuse_values("q", q, 4, "(B, H, N, D)", dtypes)
    for name, tokens in (("k", k), ("v", v)):
        check_operand(name, tokens, q.shape, q.dtype, q.device)
    check_count("block_size", block_size, q.shape[2], "the number of tokens")
    blocks = q.shape[2] // block_size
    rows = max(sort.shape[2] // blocks, 1) * blocks if sort.dim() == 4 else blocks
    check_operand("sort", sort, (*q.shape[:2], rows, blocks), q.dtype, q.device)


def empty_outputs(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, N, D) in a (B, N, H, D) storage, and log-sum-exps (B, H, N)."""
    batch, heads, length, width = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    y = q.new_empty((batch, length, heads, width)).transpose(1, 2)
    return y, q.new_empty(q.shape[:3], dtype=wide)


def empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    """(B, N, 3, H, D) for queries, keys and values, and the like of `sort`."""
    batch, heads, length, width = q.shape
    return q.new_empty((batch, length, 3, heads, width)), sort.new_empty(sort.shape)


def by_head(grads: Tensor) -> tuple[Tensor, ...]:
    """(B, N, 3, H, D) -> three times (B, H, N, D)."""
    return tuple(part.transpose(1, 2) for part in grads.unbind(2))


def differentiate_again(
    inputs: tuple[Tensor, ...], grad_y: Tensor, block_size: int
) -> Sequence[Tensor | None]:
    """Gradients of q, k, v and sort that can be differentiated again."""
    with sdpa_kernel(SDPBackend.MATH):  # torch differentiates the gradient of no other
        return second_order_gradients(partial(_in_eager, block_size=block_size), inputs, (grad_y,))


def _in_eager(q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int) -> tuple[Tensor]:
    y = eager_attention.sinkhorn_attention(
        q, k, v, sort, block_size, sortcut_local=False, padding_rule="majority", **_PLAIN
    )
    return (y,)
