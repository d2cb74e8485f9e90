"""Token statistics in compiled CPU kernels: a few passes over the tokens, with any strides.

The kernels read and write tokens with (B, N, H, D) storage. So the output of a projection is split
into heads, and heads are merged again, without a copy. The kernels are in
ops/native/statistics.cpp. Second-order gradients use the eager formulas.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.define import define
from rifflemix.ops.native import HUGE, in_huge_pages
from rifflemix.ops.statistics import eager
from rifflemix.ops.statistics.common import DTYPES, accumulation_dtype, with_whole_rows
from rifflemix.ops.statistics.cpu_causal import causal_token_statistics
from rifflemix.ops.statistics.cpu_common import (
    by_token,
    call,
    contiguous,
    empty_per_chunk,
    empty_per_token,
    empty_tokens,
    supports,
    width,
)

__all__ = ["causal_token_statistics", "supports", "token_statistics"]


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


def _empty_gradients(w: Tensor, temperature: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return empty_tokens(w), temperature.new_empty(temperature.shape)


@define(
    "token_statistics_backward",
    shapes="w: B H N D, temperature: H wide, key_padding_mask: B N bool, membership: B H N wide, "
    "energy: B H WIDTH wide, moment: B H WIDTH wide, count: B H wide, grad_y: B H N D, "
    "grad_membership: B H N wide",
    dtypes=DTYPES,
    check=lambda w, *_: {"WIDTH": width(w.shape[3])},
    like=_empty_gradients,
    device_types="cpu",
)
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
    batch, heads, _, features = w.shape
    per_feature = (batch, heads, width(features))
    grad_w, grad_temperature = _empty_gradients(w, temperature)
    w, grad_y = with_whole_rows(w), with_whole_rows(grad_y)
    call(
        "token_statistics_backward",
        w,
        int(normalize),
        (w,),
        temperature.contiguous(),
        contiguous(key_padding_mask),
        by_token(membership),
        energy.contiguous(),
        moment.contiguous(),
        count.contiguous(),
        *empty_per_chunk(w, energy.shape[2]),
        (grad_y,),
        by_token(grad_membership),
        (in_huge_pages(grad_w),),
        grad_temperature,
        empty_per_token(w),
        w.new_empty(per_feature, dtype=energy.dtype),
        w.new_empty((batch, heads), dtype=energy.dtype),
        w.new_empty(per_feature, dtype=energy.dtype),
    )
    return grad_w, grad_temperature


def _gradient(w: Tensor, *saved: Any) -> Any:
    *inputs_and_statistics, grad_y, grad_membership = saved
    grad_y = torch.zeros_like(w) if grad_y is None else grad_y
    return _backward(w, *inputs_and_statistics, grad_y, grad_membership)


def _formula(
    w: Tensor, temperature: Tensor, key_padding_mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor]:
    return eager.token_statistics(
        w, temperature, normalize=normalize, key_padding_mask=key_padding_mask
    )


@define(
    "token_statistics",
    shapes="w: B H N D, temperature: H wide, key_padding_mask: B N bool",
    dtypes=DTYPES,
    like=_empty_outputs,
    outputs="y membership | energy moment count",
    saves="w temperature key_padding_mask normalize membership energy moment count",
    backward=_gradient,
    formula=_formula,
    device_types="cpu",
)
def _forward(
    w: Tensor, temperature: Tensor, key_padding_mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute output and membership, then energy, moment and count.

    The backward pass needs energy, moment and count.
    """
    y, membership, energy, moment, count = outputs = _empty_outputs(
        w, temperature, key_padding_mask, normalize
    )
    w = w if w.stride(-1) == 1 else with_whole_rows(w)
    call(
        "token_statistics_forward",
        w,
        int(normalize),
        (w,),
        temperature.contiguous(),
        None if key_padding_mask is None else key_padding_mask.contiguous(),
        membership,
        energy,
        moment,
        count,
        *empty_per_chunk(w, energy.shape[2]),
        (y if y.nbytes < HUGE else in_huge_pages(y),),
    )
    return outputs
