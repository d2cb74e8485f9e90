"""Arguments, outputs and gradients shared by the CPU and GPU kernels of Sinkhorn attention.

The kernels support one softmax over sorted and local keys, with hidden keys and with dropout. The
formula `attend_to_blocks` computes second-order gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.dropout.eager import dropout
from rifflemix.ops.dropout.spec import draw_seed
from rifflemix.ops.gradients import second_order_gradients
from rifflemix.ops.operands import check_count, check_operand, refuse_values
from rifflemix.ops.sinkhorn.eager import sort_blocks, sorted_padding_mask
from rifflemix.ops.sinkhorn.eager_attention import full_attention


class Terms(NamedTuple):
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

    def check(self, q: Tensor, sort: Tensor, block_size: int) -> None:
        """Raise InputError if a field is incompatible with `q` and `sort`."""
        if self.unseen is not None:
            shape = (*sort.shape[:3], block_size)
            check_operand("unseen", self.unseen, shape, torch.bool, q.device)
        if self.padding is not None:
            shape = (q.shape[0], q.shape[2])
            check_operand("padding", self.padding, shape, torch.bool, q.device)
        if self.seed is not None:
            check_operand("seed", self.seed, (), torch.int64, q.device)
        if not 0.0 <= self.p < 1.0:
            raise bad_argument("p", "a probability in [0, 1)", self.p)
        if self.p and self.seed is None:
            raise bad_argument("seed", "a seed for p above 0", None)


def has_one_softmax(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, settings: dict[str, Any]
) -> bool:
    """Check whether the kernels support a call, with one softmax."""
    return (
        settings["combine"] == "concat"
        and settings["null_kv"] is None
        and not settings["sortcut"]
        and not settings["rotation"]
        and q.dtype == k.dtype == v.dtype == sort.dtype
        and q.shape == k.shape == v.shape
        and 0 not in q.shape[1:]
    )


def attend_by(
    forward: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sort: Tensor,
    block_size: int,
    **settings: Any,
) -> Tensor:
    """Run `sinkhorn_attention` with a kernel, for calls that pass `has_one_softmax`.

    `forward` is the kernel's operator; it accepts the fields of `Terms`.
    """
    causal, padding = settings["causal"], settings["key_padding_mask"]
    p, rule = settings["dropout_p"], settings["padding_rule"]
    unseen = None
    if causal or padding is not None:
        unseen = sorted_padding_mask(sort, block_size, padding, rule, 0)
    seed = draw_seed(q.device) if p else None
    terms = Terms(unseen, padding, rule == "argmax", causal, seed, p)
    y = forward(q, k, v, sort, block_size, *terms)[0]
    if settings["mixture"]:
        y = y + full_attention(q, k, v, causal, padding, p)
    return y


def check(
    q: Tensor, k: Tensor, v: Tensor, sort: Tensor, block_size: int, dtypes: Collection[torch.dtype]
) -> None:
    """Raise InputError for incompatible shapes or empty dimensions (except the batch)."""
    if q.dim() != 4 or q.dtype not in dtypes or 0 in q.shape[1:]:
        refuse_values("q", q, 4, "(B, H, N, D)", dtypes)
    for name, tokens in (("k", k), ("v", v)):
        check_operand(name, tokens, q.shape, q.dtype, q.device)
    check_count("block_size", block_size, q.shape[2], "the number of tokens")
    blocks = q.shape[2] // block_size
    rows = max(sort.shape[2] // blocks, 1) * blocks if sort.dim() == 4 else blocks
    check_operand("sort", sort, (*q.shape[:2], rows, blocks), q.dtype, q.device)


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


def drop_weights(weights: Tensor, terms: Terms) -> Tensor:
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
    terms: Terms,
    drop: Callable[[Tensor, Terms], Tensor] = drop_weights,
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
    y: Tensor = (weights @ values).flatten(2, 3)
    return y


def _hidden(scores: Tensor, terms: Terms) -> Tensor:
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


def register_gradients(
    forward: Any,
    backward: Callable[..., tuple[Tensor, Tensor]],
    needs_y: bool,
    drop: Callable[[Tensor, Terms], Tensor] = drop_weights,
) -> None:
    """Register gradients: `backward` for the first order, the formula for higher orders.

    Args:
        forward: the registered operator; it returns y and the log-sum-exps.
        backward: operator with the same arguments, then y if `needs_y`, the log-sum-exps and the
            gradient of y.
        needs_y: save y for `backward`.
        drop: function that drops the same weights as the kernels.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, sort, ctx.block_size, unseen, padding, *flags, seed, ctx.p = inputs
        ctx.mixes_padding, ctx.causal = flags
        kept = output if needs_y else output[1:]
        ctx.save_for_backward(q, k, v, sort, unseen, padding, seed, *kept)
        ctx.mark_non_differentiable(output[1])

    def differentiate(ctx: Any, grad_y: Tensor, _: None) -> tuple[Tensor | None, ...]:
        q, k, v, sort, unseen, padding, seed, *kept = ctx.saved_tensors
        inputs, size = (q, k, v, sort), ctx.block_size
        terms = Terms(unseen, padding, ctx.mixes_padding, ctx.causal, seed, ctx.p)
        found: Sequence[Tensor | None]
        if torch.is_grad_enabled():
            found = second_order_gradients(
                lambda q, k, v, sort: (attend_to_blocks(q, k, v, sort, size, terms, drop),),
                inputs,
                (grad_y,),
            )
        else:
            grads, grad_sort = backward(*inputs, size, *terms, *kept, grad_y)
            found = (*by_head(grads), grad_sort)
        return *found, *(None,) * (1 + len(terms))

    forward.register_autograd(differentiate, setup_context=save)
