"""Token statistics in compiled CPU kernels: a few passes over the tokens, with any strides.

The kernels read and write tokens with (B, N, H, D) storage. So the output of a projection is split
into heads, and heads are merged again, without a copy. The kernels are in
ops/native/statistics.cpp. Second-order gradients use the eager formulas.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.gradients import second_order_gradients
from rifflemix.ops.native import HUGE, in_huge_pages
from rifflemix.ops.operands import on_one_device
from rifflemix.ops.operator import operator
from rifflemix.ops.statistics import eager
from rifflemix.ops.statistics.common import accumulation_dtype
from rifflemix.ops.statistics.cpu_common import (
    by_token,
    call,
    contiguous,
    empty_per_chunk,
    empty_per_token,
    empty_tokens,
    view,
    width,
    with_whole_rows,
)
from rifflemix.ops.statistics.operands import check_gradient, check_heads, check_statistics


def token_statistics(
    w: Tensor,
    temperature: Tensor,
    *,
    normalize: bool,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run `rifflemix.ops.token_statistics`; return the output and the membership."""
    temperature = temperature.to(accumulation_dtype(w.dtype))
    y, membership, *_ = _forward(w, temperature, key_padding_mask, normalize)
    return y, membership


def _empty_outputs(
    w: Tensor, temperature: Tensor, key_padding_mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, heads, _, features = w.shape
    per_feature = (batch, heads, width(features))
    return (
        empty_tokens(w),
        empty_per_token(w),
        temperature.new_empty(per_feature),
        temperature.new_empty(per_feature),
        temperature.new_empty((batch, heads)),
    )


@operator("rifflemix::token_statistics", device_types="cpu")
def _forward(
    w: Tensor, temperature: Tensor, key_padding_mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute output and membership, then energy, moment and count.

    The backward pass needs energy, moment and count.
    """
    check_heads(w, temperature, key_padding_mask)
    y, membership, energy, moment, count = outputs = _empty_outputs(
        w, temperature, key_padding_mask, normalize
    )
    w = w if w.stride(-1) == 1 else with_whole_rows(w)
    call(
        "token_statistics_forward",
        w,
        int(normalize),
        *view(w),
        temperature.contiguous(),
        None if key_padding_mask is None else key_padding_mask.contiguous(),
        membership,
        energy,
        moment,
        count,
        *empty_per_chunk(w, energy.shape[2]),
        *view(y if y.nbytes < HUGE else in_huge_pages(y)),
    )
    return outputs


_forward.register_fake(on_one_device(_empty_outputs))


def _empty_gradients(w: Tensor, temperature: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return empty_tokens(w), temperature.new_empty(temperature.shape)


@operator("rifflemix::token_statistics_backward", device_types="cpu")
def _backward(
    w: Tensor,
    temperature: Tensor,
    key_padding_mask: Tensor | None,
    normalize: bool,
    membership: Tensor,
    energy: Tensor,
    moment: Tensor,
    count: Tensor,
    grad_y: Tensor,
    grad_membership: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of w and of the temperature."""
    check_heads(w, temperature, key_padding_mask)
    check_gradient("grad_y", grad_y, w)
    batch, heads, length, features = w.shape
    per_feature = (batch, heads, width(features))
    check_statistics(
        w,
        membership=(membership, (batch, heads, length)),
        energy=(energy, per_feature),
        moment=(moment, per_feature),
        count=(count, (batch, heads)),
        grad_membership=(grad_membership, (batch, heads, length)),
    )
    grad_w, grad_temperature = _empty_gradients(w, temperature)
    w, grad_y = with_whole_rows(w), with_whole_rows(grad_y)
    call(
        "token_statistics_backward",
        w,
        int(normalize),
        *view(w),
        temperature.contiguous(),
        contiguous(key_padding_mask),
        by_token(membership),
        energy.contiguous(),
        moment.contiguous(),
        count.contiguous(),
        *empty_per_chunk(w, energy.shape[2]),
        *view(grad_y),
        by_token(grad_membership),
        *view(in_huge_pages(grad_w)),
        grad_temperature,
        empty_per_token(w),
        w.new_empty(per_feature, dtype=energy.dtype),
        w.new_empty((batch, heads), dtype=energy.dtype),
        w.new_empty(per_feature, dtype=energy.dtype),
    )
    return grad_w, grad_temperature


_backward.register_fake(on_one_device(_empty_gradients))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    w, temperature, key_padding_mask, ctx.normalize = inputs
    ctx.save_for_backward(w, temperature, key_padding_mask, *output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad_y: Tensor | None, grad_membership: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    w, temperature, key_padding_mask, *statistics = ctx.saved_tensors
    if torch.is_grad_enabled():
        formula = partial(
            eager.token_statistics, normalize=ctx.normalize, key_padding_mask=key_padding_mask
        )
        grads = second_order_gradients(formula, (w, temperature), (grad_y, grad_membership))
    else:
        grad_y = torch.zeros_like(w) if grad_y is None else grad_y
        saved = (w, temperature, key_padding_mask, ctx.normalize, *statistics)
        grads = _backward(*saved, grad_y, grad_membership)
    return *grads, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
