"""Causal token statistics on a GPU: a scan over chunks, then one program per chunk and head.

The forward pass reads the tokens four times. The backward pass reads the tokens four times and the
incoming gradient three times. Torch computes the softmax over heads, because its tensors are small
relative to the tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from rifflemix.ops.define import define
from rifflemix.ops.statistics import eager
from rifflemix.ops.statistics import triton_causal_kernels as kernels
from rifflemix.ops.statistics.common import (
    COUNT_OFFSET,
    ENERGY_FLOOR,
    GPU_DTYPES,
    StatisticsState,
    bias_per_token,
    check_limits,
    end_position,
    with_whole_rows,
)
from rifflemix.ops.statistics.triton_common import (
    empty_tokens,
    float32,
    mask_bytes,
    sum_squares,
    sums_layout,
)
from rifflemix.ops.triton_support import launch

# Tokens per chunk. The running sums before a chunk need as much memory as four bfloat16 tokens.
_ROWS = 16
SevenTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None,
    *,
    initial_state: StatisticsState | None,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor, StatisticsState]:
    """Run `rifflemix.ops.causal_token_statistics`; return output, membership and state."""
    bias, energy, member_sums = None, None, None
    if denominator_bias is not None:
        bias = bias_per_token(denominator_bias, w.shape[2], initial_state, key_padding_mask)
        bias = bias.to(torch.float32).expand(w.shape[0], -1, -1).transpose(1, 2)
    if initial_state is not None:
        energy = initial_state.energy
        count = initial_state.member_count.unsqueeze(-1)
        member_sums = torch.cat((initial_state.member_energy, count), dim=-1)
    y, pi, energy, member_sums, *_ = _forward(
        w, temperature.to(torch.float32), bias, energy, member_sums, key_padding_mask
    )
    state = StatisticsState(
        energy=energy,
        member_energy=member_sums[..., :-1],
        member_count=member_sums[..., -1],
        position=end_position(w, initial_state, key_padding_mask),
    )
    return y, pi.transpose(1, 2), state


def _empty_gradients(
    w: Tensor, temperature: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, length = w.shape[:3]
    return (
        empty_tokens(w),
        float32(w, batch, length, heads),
        *_empty_ends(w),
    )


def _empty_ends(w: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the sums of a state, or their gradients."""
    batch, heads, _, features = w.shape
    shape = (batch, heads, features)
    return (
        w.new_empty(shape, dtype=torch.float64),
        w.new_empty((*shape[:2], features + 1), dtype=torch.float64),
    )


def _further_sizes(w: Tensor, *_: Any) -> dict[str, int]:
    """Return the chunks with the end of the last one, and the columns of the sums."""
    return {"ENDS": _layout(w)[1] + 1, "SUMS": w.shape[3] + 1}


@define(
    "triton_causal_token_statistics_backward",
    schema="(Tensor w, Tensor temperature, Tensor? mask, Tensor pi, Tensor energy_before, "
    "Tensor before, Tensor grad, Tensor? grad_pi, Tensor? grad_energy, Tensor? grad_member_sums)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    shapes="w: B H N D, temperature: H float32, mask: B N bool, pi: B N H float32, "
    "energy_before: B H ENDS D float32, before: B H ENDS SUMS float32, grad: B H N D, "
    "grad_pi: B N H float32, grad_energy: B H D float64, grad_member_sums: B H SUMS float64",
    dtypes=GPU_DTYPES,
    check=_further_sizes,
    like=_empty_gradients,
)
def _backward(
    w: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    pi: Tensor,
    energy_before: Tensor,
    before: Tensor,
    grad: Tensor,
    grad_pi: Tensor | None,
    grad_energy: Tensor | None,
    grad_member_sums: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of w, logits (B, N, H) and initial sums."""
    check_limits(w)
    heads, length, features = w.shape[1:]
    pi, energy_before, before = pi.contiguous(), energy_before.contiguous(), before.contiguous()
    out, grad_logits, *_ = _empty_gradients(w, temperature)
    w, grad, mask = with_whole_rows(w), with_whole_rows(grad), mask_bytes(mask)
    programs, chunks, tile = _layout(w)
    sizes = (heads, length, features, chunks)
    strides = (*w.stride()[:3], *grad.stride()[:3])

    sums = torch.empty_like(before[:, :, :-1])
    launch(
        kernels.causal_gate_gradient_sums, programs, w,
        w, grad, mask, pi, before, sums, *strides, *sizes, COUNT_OFFSET, **tile,
    )  # fmt: skip
    after, grad_first_sums = _add_up(sums, grad_member_sums, from_end=True)
    launch(
        kernels.causal_membership_gradient, programs, w,
        w, grad, mask, pi, before, after, grad_logits, *strides, *sizes, COUNT_OFFSET, **tile,
    )  # fmt: skip
    grad_membership = grad_logits if grad_pi is None else grad_logits + grad_pi
    torch.mul(pi, grad_membership - (pi * grad_membership).sum(-1, keepdim=True), out=grad_logits)
    grad_scores = grad_logits * temperature

    sums = torch.empty_like(energy_before[:, :, :-1])
    launch(
        kernels.causal_energy_gradient_sums, programs, w,
        w, mask, grad_scores, energy_before, sums, *w.stride()[:3], *sizes, ENERGY_FLOOR, **tile,
    )  # fmt: skip
    energy_after, grad_first_energy = _add_up(sums, grad_energy, from_end=True)
    launch(
        kernels.causal_token_gradient, programs, w,
        w, grad, mask, pi, grad_scores, energy_before, energy_after, before, after, out,
        *strides, *out.stride()[:3], *sizes, ENERGY_FLOOR, COUNT_OFFSET, **tile,
    )  # fmt: skip
    return out, grad_logits, grad_first_energy, grad_first_sums


def _empty_outputs(
    w: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    energy: Tensor | None,
    member_sums: Tensor | None,
    mask: Tensor | None,
) -> SevenTensors:
    batch, heads, length, features = w.shape
    chunks = _layout(w)[1]
    return (
        empty_tokens(w),
        float32(w, batch, length, heads),
        *_empty_ends(w),
        float32(w, batch, length, heads),
        float32(w, batch, heads, chunks + 1, features),
        float32(w, batch, heads, chunks + 1, features + 1),
    )


def _gradient(
    w: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    energy: Tensor | None,
    member_sums: Tensor | None,
    mask: Tensor | None,
    pi: Tensor,
    scores: Tensor,
    energy_before: Tensor,
    before: Tensor,
    grad: Tensor | None,
    *grads: Tensor | None,
) -> tuple[Tensor | None, ...]:
    grad = torch.zeros_like(w) if grad is None else grad
    grad_w, grad_logits, grad_energy_before, grad_sums_before = _backward(
        w, temperature, mask, pi, energy_before, before, grad, *grads
    )
    biased = scores if bias is None else scores + w.shape[3] * bias
    return (
        grad_w,
        (grad_logits * biased).sum((0, 1)),
        None if bias is None else grad_logits * temperature * w.shape[3],
        None if energy is None else grad_energy_before,
        None if member_sums is None else grad_sums_before,
    )


def _formula(
    w: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    energy: Tensor | None,
    member_sums: Tensor | None,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the first four outputs of `_forward` with eager formulas."""
    member_energy, count = None, None
    if member_sums is not None:
        member_energy, count = member_sums[..., :-1], member_sums[..., -1]
    bias = None if bias is None else bias.transpose(1, 2)
    y, pi, energy, member_energy, count = eager.causal_from_sums(
        w, temperature, bias, energy, member_energy, count, mask
    )
    member_sums = torch.cat((member_energy, count.unsqueeze(-1)), dim=-1)
    return y, pi.transpose(1, 2), energy, member_sums


@define(
    "triton_causal_token_statistics",
    schema="(Tensor w, Tensor temperature, Tensor? bias, Tensor? energy, Tensor? member_sums, "
    "Tensor? mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    shapes="w: B H N D, temperature: H float32, bias: B N H float32, energy: B H D float64, "
    "member_sums: B H SUMS float64, mask: B N bool",
    dtypes=GPU_DTYPES,
    check=_further_sizes,
    like=_empty_outputs,
    outputs="y pi last_energy last_member_sums | scores energy_before before",
    saves="w temperature bias energy member_sums mask pi scores energy_before before",
    backward=_gradient,
    formula=_formula,
)
def _forward(
    w: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    energy: Tensor | None,
    member_sums: Tensor | None,
    mask: Tensor | None,
) -> SevenTensors:
    """Compute y, Pi, last sums and tensors for the backward pass.

    Pi is (B, N, H). The last sums are w^2 (B, H, D), and Pi w^2 with Pi (B, H, D + 1). The backward
    pass needs the scores (B, N, H) and both sums before each chunk.

    Args:
        w: (B, H, N, D).
        temperature: (H,).
        bias: (B, N, H).
        energy: (B, H, D), sum of w^2 before the first token.
        member_sums: (B, H, D + 1), sums of Pi w^2 and, in the last column, of Pi.
        mask: (B, N).
    """
    check_limits(w)
    batch, heads, length, features = w.shape
    y, pi, _, _, scores, *_ = _empty_outputs(w, temperature, bias, energy, member_sums, mask)
    padding, w, mask = mask, with_whole_rows(w), mask_bytes(mask)
    programs, chunks, tile = _layout(w)
    sizes = (heads, length, features, chunks)
    energy_before, last_energy = _add_up(sum_squares(w, mask, _layout(w)), energy)
    launch(
        kernels.causal_scores, programs, w,
        w, mask, energy_before, scores, *w.stride()[:3], *sizes, ENERGY_FLOOR, **tile,
    )  # fmt: skip
    logits = scores if bias is None else torch.add(scores, bias, alpha=features)
    torch.softmax(logits * temperature, dim=-1, out=pi)
    if padding is not None:
        pi.masked_fill_(padding.unsqueeze(-1), 0.0)
    sums = float32(w, batch, heads, chunks, features + 1)
    launch(
        kernels.causal_member_sums, programs, w,
        w, mask, pi, sums, *w.stride()[:3], *sizes, **tile,
    )  # fmt: skip
    before, last_sums = _add_up(sums, member_sums)
    launch(
        kernels.causal_gate, programs, w,
        w, mask, pi, before, y, *w.stride()[:3], *y.stride()[:3], *sizes, COUNT_OFFSET, **tile,
    )  # fmt: skip
    return y, pi, last_energy, last_sums, scores, energy_before, before


def _layout(w: Tensor) -> tuple[int, int, dict[str, int]]:
    """Return programs, chunks per sample and tile.

    A lane has two features of all tokens of a chunk.
    """
    batch, heads, length, features = w.shape
    width = triton.next_power_of_2(features)
    num_warps = max(1, min(8, width // 64))
    rows = max(1, min(_ROWS, _ROWS * 64 * num_warps // width))
    chunks = -(-length // rows)
    return batch * heads * chunks, chunks, {"ROWS": rows, "WIDTH": width, "num_warps": num_warps}


def _add_up(sums: Tensor, start: Tensor | None, *, from_end: bool = False) -> tuple[Tensor, Tensor]:
    """Compute running sums (B, H, chunks + 1, width) from `start`, and the last sum."""
    batch, heads, chunks, width = sums.shape
    total = float32(sums, batch, heads, chunks + 1, width)
    end = sums.new_empty((batch, heads, width), dtype=torch.float64)
    programs, tile = sums_layout(sums)
    launch(
        kernels.add_up_chunks, programs, sums,
        sums, None if start is None else start.contiguous(), total, end, chunks, width,
        FROM_END=from_end, **tile,
    )  # fmt: skip
    return total, end
