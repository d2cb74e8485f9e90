"""Causal token statistics in compiled CPU kernels, with sums within and over chunks.

The kernels are in ops/native/statistics_causal.cpp. See cpu_common.py for shared helpers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.gradients import second_order_gradients
from rifflemix.ops.native import in_huge_pages
from rifflemix.ops.operands import on_one_device
from rifflemix.ops.operator import operator
from rifflemix.ops.statistics import eager
from rifflemix.ops.statistics.common import (
    StatisticsState,
    accumulation_dtype,
    bias_per_token,
    end_position,
)
from rifflemix.ops.statistics.cpu_common import (
    by_token,
    call,
    contiguous,
    empty_per_chunk,
    empty_per_token,
    empty_tokens,
    num_chunks,
    pointers,
    view,
    width,
    with_whole_rows,
)
from rifflemix.ops.statistics.operands import (
    check_all_or_none,
    check_bias,
    check_ends,
    check_gradient,
    check_heads,
    check_statistics,
)

_SixTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
_EightTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
_NO_SUMS = (None, None, None)


def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None,
    *,
    initial_state: StatisticsState | None,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor, StatisticsState]:
    """Run `rifflemix.ops.causal_token_statistics`; return output, membership and state."""
    dtype = accumulation_dtype(w.dtype)
    bias = None
    if denominator_bias is not None:
        bias = bias_per_token(denominator_bias, w.shape[2], initial_state, key_padding_mask)
        bias = bias.to(dtype)
    sums: tuple[Tensor | None, Tensor | None, Tensor | None] = _NO_SUMS
    if initial_state is not None:
        energy, mass, count, _ = initial_state
        sums = (energy, mass, count)
    y, membership, energy, mass, count, *_ = _forward(
        w, temperature.to(dtype), bias, *sums, key_padding_mask
    )
    position = end_position(w, initial_state, key_padding_mask)
    return y, membership, StatisticsState(energy, mass, count, position)


def _empty_ends(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate energy, mass and count of a state, or their gradients."""
    batch, heads, _, features = w.shape
    return (
        w.new_empty((batch, heads, features), dtype=torch.float64),
        w.new_empty((batch, heads, features), dtype=torch.float64),
        w.new_empty((batch, heads), dtype=torch.float64),
    )


def _empty_outputs(w: Tensor, temperature: Tensor, *_: Any) -> _EightTensors:
    features_before, counts_before = empty_per_chunk(w, width(w.shape[3]))
    return (
        empty_tokens(w),
        empty_per_token(w),
        *_empty_ends(w),
        features_before,
        torch.empty_like(features_before),
        counts_before,
    )


@operator("rifflemix::causal_token_statistics", device_types="cpu")
def _forward(
    w: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    energy: Tensor | None,
    mass: Tensor | None,
    count: Tensor | None,
    key_padding_mask: Tensor | None,
) -> _EightTensors:
    """Compute output, membership, last sums and sums before each chunk.

    `bias` is (B or 1, H, N). `energy`, `mass` and `count` are the sums before the first token.
    """
    check_heads(w, temperature, key_padding_mask)
    if bias is not None:
        check_bias(bias, w)
    if energy is not None or mass is not None or count is not None:
        _check_sums(w, energy=energy, mass=mass, count=count)
    outputs = _empty_outputs(w, temperature)
    y, membership, *last_and_before = outputs
    w, energy, mass, count = with_whole_rows(w), *map(contiguous, (energy, mass, count))
    call(
        "causal_token_statistics_forward",
        w,
        *view(w),
        temperature.contiguous(),
        *_bias_view(bias, w),
        contiguous(key_padding_mask),
        membership,
        *last_and_before[3:],
        pointers(energy, mass, count, *last_and_before[:3]),
        *view(in_huge_pages(y)),
    )
    return outputs


_forward.register_fake(on_one_device(_empty_outputs))


def _empty_gradients(w: Tensor, temperature: Tensor, *_: Any) -> _SixTensors:
    return (
        empty_tokens(w),
        temperature.new_empty(temperature.shape),
        empty_per_token(w),
        *_empty_ends(w),
    )


@operator("rifflemix::causal_token_statistics_backward", device_types="cpu")
def _backward(
    w: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    key_padding_mask: Tensor | None,
    membership: Tensor,
    energy_before: Tensor,
    mass_before: Tensor,
    count_before: Tensor,
    grad_y: Tensor,
    grad_membership: Tensor | None,
    grad_energy: Tensor | None,
    grad_mass: Tensor | None,
    grad_count: Tensor | None,
) -> _SixTensors:
    """Compute the gradients of w, temperature, scores and initial sums."""
    check_heads(w, temperature, key_padding_mask)
    check_bias(bias, w)
    check_gradient("grad_y", grad_y, w)
    batch, heads, length, features = w.shape
    chunks = num_chunks(length)
    per_feature = (batch, chunks, heads, width(features))
    check_statistics(
        w,
        membership=(membership, (batch, heads, length)),
        energy_before=(energy_before, per_feature),
        mass_before=(mass_before, per_feature),
        count_before=(count_before, (batch, chunks, heads)),
        grad_membership=(grad_membership, (batch, heads, length)),
    )
    check_ends(
        w,
        grad_energy=(grad_energy, (batch, heads, features)),
        grad_mass=(grad_mass, (batch, heads, features)),
        grad_count=(grad_count, (batch, heads)),
    )
    before = (energy_before.contiguous(), mass_before.contiguous(), count_before.contiguous())
    gradients = _empty_gradients(w, temperature)
    grad_w, grad_temperature, grad_scores, *grad_first = gradients
    w, grad_y = with_whole_rows(w), with_whole_rows(grad_y)
    grad_last = [contiguous(grad) for grad in (grad_energy, grad_mass, grad_count)]
    # If w has the accumulation dtype, the gradient of w is accumulated in place.
    partial = grad_w if w.dtype == temperature.dtype else empty_tokens(w, temperature.dtype)
    call(
        "causal_token_statistics_backward",
        w,
        *view(w),
        temperature.contiguous(),
        *_bias_view(bias, w),
        contiguous(key_padding_mask),
        by_token(membership),
        *before,
        pointers(*grad_last, *grad_first),
        *view(grad_y),
        by_token(grad_membership),
        *view(in_huge_pages(grad_w)),
        grad_scores,
        grad_temperature,
        *map(torch.empty_like, before),
        empty_per_token(w),
        torch.empty_like(before[2]),
        partial,
    )
    return gradients


_backward.register_fake(on_one_device(_empty_gradients))


def _check_sums(w: Tensor, **sums: Tensor | None) -> None:
    """Check that energy, mass and count are all given and fit `w`."""
    check_all_or_none(tuple(sums), tuple(sums.values()))
    batch, heads, _, features = w.shape
    shapes = ((batch, heads, features), (batch, heads, features), (batch, heads))
    check_ends(w, **dict(zip(sums, zip(sums.values(), shapes, strict=True), strict=True)))


def _bias_view(bias: Tensor | None, w: Tensor) -> tuple[Any, Any]:
    """Return the bias as the kernels expect it.

    A bias for all samples has a batch stride of 0.
    """
    if bias is None:
        return None, view(w)[1]
    return view(bias.expand(w.shape[:3]))


def _save(ctx: Any, inputs: tuple[Tensor | None, ...], output: _EightTensors) -> None:
    ctx.save_for_backward(*inputs, output[1], *output[5:])
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad_y: Tensor | None, *grads: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: gradient checkpointing recomputes at each read
    inputs, statistics = saved[:7], saved[7:]
    if torch.is_grad_enabled():
        formula = partial(eager.causal_from_sums, key_padding_mask=inputs[6])
        return *second_order_gradients(formula, inputs[:6], (grad_y, *grads[:4])), None
    w, temperature, bias, energy, *_, key_padding_mask = inputs
    grad_y = torch.zeros_like(w) if grad_y is None else grad_y
    grad_w, grad_temperature, grad_scores, *grad_sums = _backward(
        w, temperature, bias, key_padding_mask, *statistics, grad_y, *grads[:4]
    )
    grad_bias = None if bias is None else (w.shape[3] * grad_scores).sum_to_size(bias.shape)
    return (
        grad_w,
        grad_temperature,
        grad_bias,
        *(grad_sums if energy is not None else _NO_SUMS),
        None,
    )


_forward.register_autograd(_differentiate, setup_context=_save)
