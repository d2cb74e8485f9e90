"""Parts of attention with a backward pass that saves few tensors and copies."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import elu_into, has_plain_autograd, is_batch, leaves_package, storage_key

LOG_ZERO = -1e30
"""Replaces log(0). It is finite, so rows with no other value have no NaN."""


def fuses_features() -> bool:
    """Check that the functions of this module can run: not in graphs and transforms."""
    return has_plain_autograd() and not (torch.compiler.is_compiling() or leaves_package())


def random_features(
    x: Tensor, rows: Tensor, padded: Tensor | None, offset: float, *, over_tokens: bool
) -> Tensor:
    """Compute (exp(w x - |x|^2 / 2 - largest) + offset) / sqrt(M) for all rows w.

    Args:
        x: (B, H, N, D).
        rows: (M, D), without a gradient.
        padded: bool mask that broadcasts to (B, H, N, 1). True = `largest` ignores the token, and
            its exponents are 0.
        offset: number that is added to the exponentials.
        over_tokens: `largest` is the largest product of a head. False: of each token.

    Returns:
        (B, H, N, M).
    """
    return _RandomFeatures.apply(  # type: ignore[no-untyped-call]
        x, rows, padded, offset, over_tokens
    )


class _RandomFeatures(torch.autograd.Function):
    """Save one tensor of features. Autograd would save every step.

    The derivative with respect to an exponent is the feature without its offset. `largest` is a
    product, so it has a gradient too. It changes the result through the offset only.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, padded: Tensor | None, offset: float, over_tokens: bool
    ) -> Tensor:
        y = x @ rows.mT
        if over_tokens:
            # Find the token with the largest product, then the row of this product.
            most = y.amax(-1, keepdim=True)
            if padded is not None:
                most.masked_fill_(padded, LOG_ZERO)
            token = most.argmax(-2, keepdim=True)
            largest, row = y.take_along_dim(token, -2).max(-1, keepdim=True)
        else:
            token = None
            largest, row = y.max(-1, keepdim=True)
        taken_off = 0.5 * x.square().sum(-1, keepdim=True) + largest
        if padded is not None:  # exp of a very negative number takes ten times as long
            y.masked_fill_(padded, 0.0)
            taken_off.masked_fill_(padded, 0.0)
        y.sub_(taken_off)
        ctx.scale = 1.0 / math.sqrt(len(rows))
        y.exp_().add_(offset).mul_(ctx.scale)
        ctx.offset = offset
        ctx.save_for_backward(x, rows, y, token, row)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, rows, y, token, row = ctx.saved_tensors
        grads = _times(y - ctx.offset * ctx.scale, grad)  # of the exponents
        total = grads.sum(-1, keepdim=True)
        largest_row = rows[row.squeeze(-1)]
        grad_x = grads @ rows - total * (x if token is not None else x + largest_row)
        if token is not None:
            at = token.expand(-1, -1, -1, x.shape[-1])
            grad_x = grad_x.scatter_add(-2, at, -total.sum(-2, keepdim=True) * largest_row)
        return grad_x, None, None, None, None


def elu_plus_one(x: Tensor) -> Tensor:
    """Compute elu(x) + 1, in one new tensor if possible."""
    if not fuses_features():
        return F.elu(x) + 1.0
    return _EluPlusOne.apply(x)  # type: ignore[no-untyped-call]


class _EluPlusOne(torch.autograd.Function):
    """Save only y: the derivative is exp(x) = y below 0, and 1 above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)  # (B, H, N, D) layout
        elu_into(x, y).add_(1.0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return _times(y.clamp(max=1.0), grad)


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    """Compute x * scale, in one new tensor of memory layout (B, N, H, D) if possible.

    Args:
        x: (B, H, N, D).
        scale: (B, H, N, 1), without zeros.
    """
    if not fuses_features():
        return x * scale
    return _Scaled.apply(x, scale)  # type: ignore[no-untyped-call]


class _Scaled(torch.autograd.Function):
    """Save the product instead of x, since the output projection saves the product too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        _, heads, length, width = x.shape
        token = heads * width
        y = x.new_empty_strided(x.shape, (length * token, width, token, 1))
        torch.mul(x, scale, out=y)
        ctx.save_for_backward(scale, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        scale, y = ctx.saved_tensors
        return grad * scale, (grad * y).sum(-1, keepdim=True) / scale


def sums_before(x: Tensor) -> Tensor:
    """Sum the chunks before each chunk: (B, H, chunks, R, S), in the same dtype."""
    if not fuses_features():
        return _cumulative_before(x)
    return _SumsBefore.apply(x, False)  # type: ignore[no-untyped-call]


def _cumulative_before(x: Tensor) -> Tensor:
    return F.pad(x.cumsum(2), (0, 0, 0, 0, 1, 0))[:, :, :-1]


class _SumsBefore(torch.autograd.Function):
    """Read and write every chunk once; a cumulative sum and its gradient are many copies.

    The gradient is the same sum in the other direction.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, backwards: bool) -> Tensor:
        ctx.backwards = backwards
        sums = torch.empty_like(x, memory_format=torch.contiguous_format)
        order = range(x.shape[2])[:: -1 if backwards else 1]
        sums[:, :, order[0]] = 0.0
        for last, this in pairwise(order):
            torch.add(sums[:, :, last], x[:, :, last], out=sums[:, :, this])
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if not is_batch(grad):
            sums: Tensor = _SumsBefore.apply(  # type: ignore[no-untyped-call]
                grad, not ctx.backwards
            )
            return sums, None
        if ctx.backwards:
            return _cumulative_before(grad), None
        return _cumulative_before(grad.flip(2)).flip(2), None


def _times(new: Tensor, grad: Tensor) -> Tensor:
    """Multiply `new` by `grad`, in place unless `grad` is a batch of gradients."""
    return new * grad if is_batch(grad) else new.mul_(grad)


def unbind_qkv(heads: Tensor) -> tuple[Tensor, ...]:
    """Split (B, N, P, H, D) into P views (B, N, H, D).

    The kernels of rifflemix write the gradients of the views into one tensor. The backward pass
    then returns this tensor. Other gradients are stacked, which needs a copy.
    """
    if not (heads.requires_grad and fuses_features()):
        return heads.unbind(2)
    return _UnbindQKV.apply(heads)  # type: ignore[no-untyped-call]


class _UnbindQKV(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor) -> tuple[Tensor, ...]:
        return heads.unbind(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _joint(grads) if _share_memory(grads) else torch.stack(grads, 2)


def _share_memory(parts: tuple[Tensor, ...]) -> bool:
    """Check that parts (B, N, H, D) are views of one (B, N, P, H, D) without a gradient."""
    if torch.is_grad_enabled() or any(map(is_batch, parts)):
        return False
    first = parts[0]
    length, heads, width = first.shape[1:]
    step = heads * width
    token = len(parts) * step
    strides = (length * token, token, width, 1)
    memory = storage_key(first)
    return all(
        part.stride() == strides
        and part.storage_offset() == first.storage_offset() + i * step
        and storage_key(part) == memory
        for i, part in enumerate(parts)
    )


def _joint(parts: tuple[Tensor, ...]) -> Tensor:
    """Return the (B, N, P, H, D) tensor of the views."""
    batch, length, heads, width = parts[0].shape
    row, token, head, feature = parts[0].stride()
    shape = (batch, length, len(parts), heads, width)
    return parts[0].as_strided(shape, (row, token, heads * width, head, feature))
