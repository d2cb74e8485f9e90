"""Arguments, outputs and gradients shared by the CPU and GPU kernels of Sinkhorn attention.

The kernels support one softmax over sorted and local keys, with hidden keys and with dropout. The
formula `attend_to_blocks` computes second-order gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import check_divides
from rifflemix.errors import bad_argument
from rifflemix.ops.dropout.eager import dropout
from rifflemix.ops.dropout.spec import draw_seed
from rifflemix.ops.sinkhorn.eager import sort_blocks, sorted_padding_mask
from rifflemix.ops.sinkhorn.eager_attention import full_attention


class Visibility(NamedTuple):
    """Masks and dropout settings of a kernel call.

    Attributes:
        unseen: (B, H, R, b) bool, True = hidden position of a sorted block.
        padding: (B, N) bool, True = hidden local key.
        mixes_padding: sorted blocks include the values at padding instead of zeros.
        causal: a query ignores later keys of the same block.
        seed: () int64 seed of dropout; None without dropout.
        p: probability of dropping a weight.
    """

    unseen: Tensor | None = None
    padding: Tensor | None = None
    mixes_padding: bool = False
    causal: bool = False
    seed: Tensor | None = None
    p: float = 0.0


def run_kernel(
    forward: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    **settings: Any,
) -> Tensor:
    """Run `sinkhorn_attention` with a kernel, for one softmax over sorted and local keys.

    `forward` is the kernel's operator; it accepts the fields of `Visibility`.
    """
    causal, padding = settings["causal"], settings["key_padding_mask"]
    p, rule = settings["dropout_p"], settings["padding_rule"]
    unseen = None
    if causal or padding is not None:
        unseen = sorted_padding_mask(sort, block_size, padding, rule, 0)
    seed = draw_seed(q.device) if p else None
    terms = Visibility(unseen, padding, rule == "argmax", causal, seed, p)
    y = forward(q, k, v, sort, block_size, *terms)[0]
    if settings["mixture"]:
        y = y + full_attention(q, k, v, causal, padding, p)
    return y


SHAPES = (
    "q: B H N D, k: B H N D, v: B H N D, sort: B H ROWS BLOCKS, unseen: B H ROWS SIZE bool, "
    "padding: B N bool, seed: int64"
)
"""Shapes of the tensors of a kernel, with the sizes that `check` returns."""
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor sort, SymInt block_size, Tensor? unseen, "
    "Tensor? padding, bool mixes_padding, bool causal, Tensor? seed, float p"
)
SAVES = "q k v sort block_size unseen padding mixes_padding causal seed p"


def check(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, *settings: Any
) -> dict[str, int]:
    """Check the numbers of a kernel call and return further sizes for `SHAPES`."""
    *_, seed, p = settings[: len(Visibility._fields)]
    if block_size < 1 or q.shape[2] % block_size:
        check_divides("block_size", block_size, q.shape[2], "the number of tokens")
    if not 0.0 <= p < 1.0:
        raise bad_argument("p", "a probability in [0, 1)", p)
    if p and seed is None:
        raise bad_argument("seed", "a seed for p above 0", None)
    blocks = q.shape[2] // block_size
    rows = max(sort.shape[2] // blocks, 1) * blocks if sort.dim() == 4 else blocks
    return {"ROWS": rows, "BLOCKS": blocks, "SIZE": block_size}


def empty_outputs(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, *_: Any
) -> tuple[Tensor, Tensor]:
    """Allocate the outputs and the log-sum-exps.

    The outputs are (B, H, N, D) with memory layout (B, N, H, D); the log-sum-exps are (B, H, N).
    """
    batch, heads, length, width = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    y = q.new_empty((batch, length, heads, width)).transpose(1, 2)
    return y, q.new_empty(q.shape[:3], dtype=wide)


def empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    """Allocate the gradients.

    The shapes are (B, N, 3, H, D) for Q, K and V together, and the shape of `sort`.
    """
    batch, heads, length, width = q.shape
    return q.new_empty((batch, length, 3, heads, width)), sort.new_empty(sort.shape)


def by_head(grads: Tensor) -> tuple[Tensor, ...]:
    """Split (B, N, 3, H, D) into three (B, H, N, D)."""
    return tuple(part.transpose(1, 2) for part in grads.unbind(2))


def drop_weights(weights: Tensor, terms: Visibility) -> Tensor:
    """Apply the dropout of the CPU kernel to weights (B, H, n, b, S).

    The kernel counts elements of the transposed weights, with one row per key.
    """
    return dropout(weights.mT, terms.p, terms.seed).mT


def attend_to_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    terms: Visibility,
    drop: Callable[[Tensor, Visibility], Tensor] = drop_weights,
) -> Tensor:
    """Compute the kernels' result in plain torch, with all weights in memory."""
    if terms.padding is not None and not terms.mixes_padding:
        padded = terms.padding[:, None, :, None]
        k, v = torch.where(padded, 0.0, k), torch.where(padded, 0.0, v)
    queries, keys, values = (torch.unflatten(x, 2, (-1, block_size)) for x in (q, k, v))
    blocks = queries.shape[2]
    keys, values = (
        torch.cat((torch.unflatten(sort_blocks(x, sort), 2, (blocks, -1)).flatten(3, 4), x), 3)
        for x in (keys, values)
    )
    scores = queries @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = _hidden(scores, terms)
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    weights = weights.masked_fill(hidden, 0.0)
    if terms.seed is not None:
        weights = drop(weights, terms)
    return (weights @ values).flatten(2, 3)


def _hidden(scores: Tensor, terms: Visibility) -> Tensor:
    """Mask the hidden keys: bool, (B, H, n, b, S), sorted keys first."""
    batch, _, blocks, block_size, keys = scores.shape
    hidden = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    sorted_keys, own = hidden.split((keys - block_size, block_size), -1)
    if terms.unseen is not None:
        sorted_keys |= torch.unflatten(terms.unseen, 2, (blocks, -1)).flatten(3).unsqueeze(3)
    if terms.padding is not None:
        own |= terms.padding.reshape(batch, 1, blocks, 1, block_size)
    if terms.causal:
        own |= torch.ones_like(own[0, 0, 0]).triu(1)
    return hidden


def formula(
    drop: Callable[[Tensor, Visibility], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    *terms: Any,
) -> Tensor:
    """Compute the output of a kernel from its arguments; `drop` drops the same weights."""
    return attend_to_blocks(q, k, v, sort, block_size, Visibility(*terms), drop)


def gradients_by(backward: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    """Return a function that splits the first result of `backward` by `by_head`."""

    def gradients(*saved: Any) -> tuple[Tensor, ...]:
        grads, grad_sort = backward(*saved)
        return *by_head(grads), grad_sort

    return gradients
