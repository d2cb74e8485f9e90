"""Token statistics on a GPU: three passes over the tokens forward, three backward.

Three is the minimum: the membership needs the energy of all tokens, and the output needs the
moments of all memberships. Tokens that fit the cache are read from memory once. The backward pass
depends in the same way on the gradients of the moments and of the energy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.ops.define import define
from rifflemix.ops.statistics import eager
from rifflemix.ops.statistics import triton_kernels as kernels
from rifflemix.ops.statistics.common import (
    COUNT_OFFSET,
    GPU_DTYPES,
    NORM_FLOOR,
    check_limits,
    with_whole_rows,
)
from rifflemix.ops.statistics.triton_causal import causal_token_statistics
from rifflemix.ops.statistics.triton_common import (
    empty_tokens,
    float32,
    head_tile,
    mask_bytes,
    sum_squares,
    sum_tile,
    sums_layout,
    token_layout,
)
from rifflemix.ops.triton_support import ROUNDED, launch

__all__ = ["causal_token_statistics", "token_statistics"]

_FLOOR = NORM_FLOOR**2


def token_statistics(
    w: Tensor,
    temperature: Tensor,
    *,
    normalize: bool,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run `rifflemix.ops.token_statistics`; return the output and the membership."""
    y, pi, *_ = _forward(w, temperature.to(torch.float32), key_padding_mask, normalize)
    return y, pi.transpose(1, 2)


def _empty_outputs(
    w: Tensor, temperature: Tensor, mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, length, features = w.shape
    return (
        empty_tokens(w),
        float32(w, batch, length, heads),
        float32(w, batch, heads, features + 1),
        float32(w, batch, heads, features) if normalize else float32(w, 0),
    )


def _check_backward(
    w: Tensor, temperature: Tensor, mask: Tensor | None, normalize: bool, *_: Any
) -> dict[str, Any]:
    features = w.shape[3]
    return {"SUMS": features + 1, "ENERGY...": (*w.shape[:2], features) if normalize else (0,)}


@define(
    "triton_token_statistics_backward",
    schema="(Tensor w, Tensor temperature, Tensor? mask, bool normalize, Tensor pi, "
    "Tensor member_sums, Tensor energy, Tensor grad, Tensor? grad_pi) -> (Tensor, Tensor)",
    shapes="w: B H N D, temperature: H float32, mask: B N bool, pi: B N H float32, "
    "member_sums: B H SUMS float32, energy: ENERGY... float32, grad: B H N D, "
    "grad_pi: B N H float32",
    dtypes=GPU_DTYPES,
    check=_check_backward,
    like=lambda w, temperature, *_: (empty_tokens(w), temperature.new_empty(temperature.shape)),
)
def _backward(
    w: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    normalize: bool,
    pi: Tensor,
    member_sums: Tensor,
    energy: Tensor,
    grad: Tensor,
    grad_pi: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of w and of the temperature."""
    check_limits(w)
    batch, heads, length, features = w.shape
    pi, member_sums, energy = pi.contiguous(), member_sums.contiguous(), energy.contiguous()
    out = empty_tokens(w)
    w, grad, mask = with_whole_rows(w), with_whole_rows(grad), mask_bytes(mask)
    known_energy = energy if normalize else None
    programs, chunks, tile = token_layout(w)

    through_tokens = float32(w, batch, length, heads)
    sums = float32(w, batch, heads, chunks, features)
    launch(
        kernels.gate_gradient_sums, programs, w,
        w, grad, pi, member_sums, through_tokens, sums,
        *w.stride()[:3], *grad.stride()[:3],
        heads, length, features, chunks, COUNT_OFFSET, mask, **tile, **ROUNDED,
    )  # fmt: skip
    grad_energy, grad_count = float32(w, batch, heads, features), float32(w, batch, heads)
    launch(
        kernels.moment_gradient, batch * heads, w,
        sums, member_sums, grad_energy, grad_count, features, chunks, COUNT_OFFSET,
        **sum_tile(chunks, features),
    )  # fmt: skip

    head_chunks, heads_tile = head_tile(w)
    grad_logits, sums = torch.empty_like(pi), float32(w, batch, heads, head_chunks, features)
    launch(
        kernels.membership_gradient, batch * head_chunks, w,
        w, mask, pi, grad_energy, grad_count, through_tokens,
        None if grad_pi is None else grad_pi.contiguous(), grad_logits, sums,
        *w.stride()[:3], heads, length, features, head_chunks, REVERSED=True, **heads_tile,
    )  # fmt: skip
    score_sums, grad_temperature = torch.empty_like(grad_energy), torch.empty_like(grad_count)
    launch(
        kernels.energy_gradient, batch * heads, w,
        sums, known_energy, score_sums, grad_temperature, features, head_chunks, _FLOOR,
        **sum_tile(head_chunks, features),
    )  # fmt: skip

    launch(
        kernels.token_gradient, programs, w,
        w, grad, temperature.contiguous(), mask, known_energy, pi, member_sums, grad_energy,
        grad_logits, score_sums, out, *w.stride()[:3], *grad.stride()[:3], *out.stride()[:3],
        heads, length, features, chunks, _FLOOR, COUNT_OFFSET, **tile,
    )  # fmt: skip
    return out, grad_temperature.sum(0)


def _gradient(w: Tensor, *saved: Any) -> Any:
    *inputs_and_statistics, grad, grad_pi = saved
    return _backward(
        w, *inputs_and_statistics, torch.zeros_like(w) if grad is None else grad, grad_pi
    )


def _formula(
    w: Tensor, temperature: Tensor, mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor]:
    y, pi = eager.token_statistics(w, temperature, normalize=normalize, key_padding_mask=mask)
    return y, pi.transpose(1, 2)


@define(
    "triton_token_statistics",
    schema="(Tensor w, Tensor temperature, Tensor? mask, bool normalize) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    shapes="w: B H N D, temperature: H float32, mask: B N bool",
    dtypes=GPU_DTYPES,
    like=_empty_outputs,
    outputs="y pi | member_sums energy",
    saves="w temperature mask normalize pi member_sums energy",
    backward=_gradient,
    formula=_formula,
)
def _forward(
    w: Tensor, temperature: Tensor, mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the output, and tensors for the backward pass.

    The tensors are Pi (B, N, H), sums of Pi w^2 and Pi (B, H, D + 1), and energy (B, H, D).
    """
    check_limits(w)
    batch, heads, length, features = w.shape
    y, pi, member_sums, energy = _empty_outputs(w, temperature, mask, normalize)
    w, mask = with_whole_rows(w), mask_bytes(mask)
    if normalize:
        _add_chunks(sum_squares(w, mask, token_layout(w)), energy)
    chunks, tile = head_tile(w)
    sums = float32(w, batch, heads, chunks, features + 1)
    launch(
        kernels.membership, batch * chunks, w,
        w, temperature.contiguous(), mask, energy if normalize else None, pi, sums,
        *w.stride()[:3], heads, length, features, chunks, _FLOOR, REVERSED=True, **tile,
    )  # fmt: skip
    _add_chunks(sums, member_sums)
    programs, chunks, tile = token_layout(w)
    launch(
        kernels.gate, programs, w,
        w, pi, member_sums, y, *w.stride()[:3], *y.stride()[:3],
        heads, length, features, chunks, COUNT_OFFSET, mask, **tile,
    )  # fmt: skip
    return y, pi, member_sums, energy


def _add_chunks(sums: Tensor, total: Tensor) -> None:
    programs, tile = sums_layout(sums)
    launch(kernels.add_chunks, programs, sums, sums, total, *sums.shape[2:], **tile)
