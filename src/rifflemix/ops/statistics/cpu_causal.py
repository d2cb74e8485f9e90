"""Causal token statistics in compiled CPU kernels, with sums within and over chunks.

The kernels are in ops/native/statistics_causal.cpp. See cpu_common.py for shared helpers.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.define import define
from rifflemix.ops.native import in_huge_pages
from rifflemix.ops.statistics import eager
from rifflemix.ops.statistics.common import (
    DTYPES,
    StatisticsState,
    accumulation_dtype,
    bias_per_token,
    end_position,
    with_whole_rows,
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
    width,
)

_SixTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
_EightTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
_NO_SUMS = (None, None, None)
_NO_STRIDES = (ctypes.c_int64 * 3)()


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


def _empty_gradients(w: Tensor, temperature: Tensor, *_: Any) -> _SixTensors:
    return (
        empty_tokens(w),
        temperature.new_empty(temperature.shape),
        empty_per_token(w),
        *_empty_ends(w),
    )


def _further_sizes(w: Tensor, temperature: Tensor, bias: Tensor | None, *_: Any) -> dict[str, int]:
    """Return 1 or B samples of a bias, the chunks, and the padded features of a head."""
    samples = 1 if bias is not None and bias.shape[:1] == (1,) else w.shape[0]
    return {"SAMPLES": samples, "CHUNKS": num_chunks(w.shape[2]), "WIDTH": width(w.shape[3])}


@define(
    "causal_token_statistics_backward",
    shapes="w: B H N D, temperature: H wide, bias: SAMPLES H N wide, key_padding_mask: B N bool, "
    "membership: B H N wide, energy_before: B CHUNKS H WIDTH wide, "
    "mass_before: B CHUNKS H WIDTH wide, count_before: B CHUNKS H wide, grad_y: B H N D, "
    "grad_membership: B H N wide, grad_energy: B H D float64, grad_mass: B H D float64, "
    "grad_count: B H float64",
    dtypes=DTYPES,
    check=_further_sizes,
    like=_empty_gradients,
    device_types="cpu",
)
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
        (w,),
        temperature.contiguous(),
        *_bias_view(bias, w),
        contiguous(key_padding_mask),
        by_token(membership),
        *before,
        pointers(*grad_last, *grad_first),
        (grad_y,),
        by_token(grad_membership),
        (in_huge_pages(grad_w),),
        grad_scores,
        grad_temperature,
        *map(torch.empty_like, before),
        empty_per_token(w),
        torch.empty_like(before[2]),
        partial,
    )
    return gradients


def _bias_view(bias: Tensor | None, w: Tensor) -> tuple[Any, ...]:
    """Return the bias as the kernels expect it.

    A bias for all samples has a batch stride of 0.
    """
    return (None, _NO_STRIDES) if bias is None else ((bias.expand(w.shape[:3]),),)


def _gradient(
    w: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    energy: Tensor | None,
    mass: Tensor | None,
    count: Tensor | None,
    key_padding_mask: Tensor | None,
    membership: Tensor,
    *saved: Tensor | None,
) -> tuple[Tensor | None, ...]:
    *before, grad_y, grad_membership, grad_energy, grad_mass, grad_count = saved
    grad_y = torch.zeros_like(w) if grad_y is None else grad_y
    last = (grad_membership, grad_energy, grad_mass, grad_count)
    grad_w, grad_temperature, grad_scores, *grad_sums = _backward(
        w, temperature, bias, key_padding_mask, membership, *before, grad_y, *last
    )
    grad_bias = None if bias is None else (w.shape[3] * grad_scores).sum_to_size(bias.shape)
    return grad_w, grad_temperature, grad_bias, *(_NO_SUMS if energy is None else grad_sums)


def _check(w: Tensor, temperature: Tensor, bias: Tensor | None, *others: Any) -> dict[str, int]:
    given = sum(value is not None for value in others[:3])
    if given not in (0, 3):
        raise bad_argument("energy, mass, count", "all of them, or none", f"{given} of 3")
    return _further_sizes(w, temperature, bias)


@define(
    "causal_token_statistics",
    shapes="w: B H N D, temperature: H wide, bias: SAMPLES H N wide, energy: B H D float64, "
    "mass: B H D float64, count: B H float64, key_padding_mask: B N bool",
    dtypes=DTYPES,
    check=_check,
    like=_empty_outputs,
    outputs="y membership last_energy last_mass last_count | "
    "energy_before mass_before count_before",
    saves="w temperature bias energy mass count key_padding_mask membership "
    "energy_before mass_before count_before",
    backward=_gradient,
    formula=eager.causal_from_sums,
    device_types="cpu",
)
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
    outputs = _empty_outputs(w, temperature)
    y, membership, *last_and_before = outputs
    w, energy, mass, count = with_whole_rows(w), *map(contiguous, (energy, mass, count))
    call(
        "causal_token_statistics_forward",
        w,
        (w,),
        temperature.contiguous(),
        *_bias_view(bias, w),
        contiguous(key_padding_mask),
        membership,
        *last_and_before[3:],
        pointers(energy, mass, count, *last_and_before[:3]),
        (in_huge_pages(y),),
    )
    return outputs
