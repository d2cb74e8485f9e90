"""The rank filter in compiled CPU kernels. The backward pass needs one byte per value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.ops.operands import check_operand, on_one_device
from rifflemix.ops.operator import operator
from rifflemix.ops.permutation import eager
from rifflemix.ops.permutation.cpu_common import FORMATS, new, run
from rifflemix.ops.permutation.operands import check_tokens

_MOST_WINDOW = 256  # tokens, so that a distance within the window fits a byte


def filters(window_size: int) -> bool:
    """Return whether the kernel supports this window size."""
    return window_size <= _MOST_WINDOW


def rank_filter(x: Tensor, ranks: Tensor, window_size: int) -> Tensor:
    """Select the token of each channel's rank among the last `window_size` tokens."""
    wants_grad = torch.is_grad_enabled() and x.requires_grad
    y: Tensor = _rank_filter(x, ranks, window_size, wants_grad)[0]
    return y


@operator("rifflemix::rank_filter", device_types="cpu")
def _rank_filter(x: Tensor, ranks: Tensor, window_size: int, keep: bool) -> tuple[Tensor, Tensor]:
    """Return the values and their distances to the source tokens, (B, N, C) uint8.

    The distances are empty unless `keep` is True.
    """
    _check(x, window_size)
    check_operand("ranks", ranks, (x.shape[2],), torch.int64, x.device)
    y = new(x)
    back = new(x, None if keep else (0,), torch.uint8)
    run("rank_filter", x, window_size, y=y, index=back, steps=ranks)
    return y, back


@_rank_filter.register_fake
@on_one_device
def _(x: Tensor, ranks: Tensor, window_size: int, keep: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape if keep else (0,), dtype=torch.uint8)


def _save_back(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.window_size = inputs[2]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate_filter(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:  # no gradient of the values
        return (None,) * 4
    (back,) = ctx.saved_tensors
    return _collect(grad, back, ctx.window_size), None, None, None


_rank_filter.register_autograd(_differentiate_filter, setup_context=_save_back)


@operator("rifflemix::rank_filter_back", device_types="cpu")
def _collect(grad: Tensor, back: Tensor, window_size: int) -> Tensor:
    """Compute the gradient of `eager.take_back`.

    It sums, for each token, over all positions that selected the token.
    """
    _check(grad, window_size)
    check_operand("back", back, grad.shape, torch.uint8, grad.device)
    out = new(grad)
    run("rank_filter_back", grad, window_size, y=out, index=back)
    return out


@_collect.register_fake
@on_one_device
def _(grad: Tensor, back: Tensor, window_size: int) -> Tensor:
    return grad.new_empty(grad.shape)


def _keep_back(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _differentiate_collect(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (back,) = ctx.saved_tensors
    return eager.take_back(grad, back.to(torch.int64)), None, None


_collect.register_autograd(_differentiate_collect, setup_context=_keep_back)


def _check(x: Tensor, window_size: int) -> None:
    check_tokens("x", x, FORMATS, None, None)
    check_integer("window_size", window_size, 1, _MOST_WINDOW)
