"""Sparse Sinkhorn sorting in plain torch: vectorized, any device."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Replaces log(0). It is finite, so rows and columns without live entries have zero values and zero
# gradients; -inf would produce NaN.
LOG_ZERO = -1e30


statistics_dtype = partial(torch.promote_types, torch.float32)
"""Dtype for accumulating sums of a dtype: at least float32."""


def live_entries(
    log_scores: Tensor, causal: bool, block_padding_mask: Tensor | None, num_null: int = 0
) -> Tensor:
    """Return a bool mask of live entries, like the scores.

    True = the destination (row) may use the source (column).

    The first `num_null` columns are null blocks, available to every live destination.
    """
    rows, columns = log_scores.shape[-2:]
    live = ~torch.isneginf(log_scores)
    if causal:
        ones = torch.ones(rows, columns, dtype=torch.bool, device=live.device)
        live = live & ones.tril(num_null - 1)
    if block_padding_mask is not None:
        shape = (-1, *(1,) * (log_scores.dim() - 3)) if log_scores.dim() > 2 else ()
        alive = ~block_padding_mask.reshape(*shape, block_padding_mask.shape[-1])
        live = live & F.pad(alive, (num_null, 0), value=True).unsqueeze(-2)
        if rows == alive.shape[-1]:
            live = live & alive.unsqueeze(-1)
    return live


def sinkhorn(
    log_scores: Tensor,
    num_iterations: int,
    causal: bool,
    final_row_norm: bool,
    block_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sinkhorn`."""
    live = live_entries(log_scores, causal, block_padding_mask)
    wide = log_scores.to(statistics_dtype(log_scores.dtype))
    sort = balance(wide, live, num_iterations, causal, final_row_norm)
    return sort.to(log_scores.dtype)


def balance(
    log_scores: Tensor,
    live: Tensor,
    num_iterations: int,
    causal: bool = False,
    final_row_norm: bool = False,
) -> Tensor:
    """Balance scores in the accumulation dtype; `live` broadcasts to `log_scores`."""
    dead = ~live
    r = log_scores.masked_fill(dead, LOG_ZERO)
    for _ in range(num_iterations):
        r = r.log_softmax(-1).masked_fill(dead, LOG_ZERO)
        # A causal column may only be normalized over the destinations so far.
        r = r - running_logsumexp(r) if causal else r.log_softmax(-2)
        r = r.masked_fill(dead, LOG_ZERO)
    if causal and final_row_norm and num_iterations:
        r = r.log_softmax(-1).masked_fill(dead, LOG_ZERO)
    return r.exp()


def top_k_blocks(
    scores: Tensor,
    k: int,
    temperature: float,
    causal: bool,
    num_null: int,
    block_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.top_k_blocks`."""
    live = live_entries(scores, causal, block_padding_mask, num_null)
    wide = scores.to(statistics_dtype(scores.dtype)) / temperature
    columns = torch.arange(scores.shape[-1], device=scores.device)
    picks = []
    for _ in range(k):
        weights = wide.masked_fill(~live, LOG_ZERO).softmax(-1).masked_fill(~live, 0.0)
        # argmax returns the first of equal entries; topk does not guarantee this.
        best = weights.argmax(-1, keepdim=True) == columns
        picks.append(weights.masked_fill(~best, 0.0))
        live = live & ~best
    return torch.stack(picks, -2).flatten(-3, -2).to(scores.dtype)


def pool_blocks(
    x: Tensor, block_size: int, causal: bool, key_padding_mask: Tensor | None
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.pool_blocks`."""
    if key_padding_mask is not None:
        x = torch.where(key_padding_mask.unsqueeze(-1), 0.0, x)
    blocks = torch.unflatten(x, 1, (-1, block_size))
    totals = blocks.sum(2, dtype=statistics_dtype(x.dtype))
    if causal:
        # Shift the cumulative sums. Subtracting the later tokens instead would leave their rounding
        # errors in the result.
        totals = F.pad(totals.cumsum(1), (0, 0, 1, 0))[:, :-1] + blocks[:, :, 0]
    return totals.to(x.dtype)


def block_scores(
    q: Tensor,
    k: Tensor,
    block_size: int,
    causal: bool,
    shared: bool,
    key_padding_mask: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.block_scores`."""
    if causal:
        destinations = _running_mean(q, key_padding_mask)[:, :, ::block_size]
        k = _running_mean(k, key_padding_mask)
        sources = _masked_sum(k, key_padding_mask, block_size)
    else:
        span = q.shape[2] if shared else block_size
        destinations = _masked_mean(q, key_padding_mask, span)
        sources = _masked_mean(k, key_padding_mask, block_size)
    return (destinations / math.sqrt(q.shape[-1])) @ sources.transpose(-1, -2)


def _valid(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Return 1 for valid tokens and 0 for padding, (B, 1, N, 1)."""
    dtype = statistics_dtype(x.dtype)
    if key_padding_mask is None:
        return torch.ones(1, 1, x.shape[2], 1, dtype=dtype, device=x.device)
    return (~key_padding_mask)[:, None, :, None].to(dtype)


def _kept(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Cast `x` to the accumulation dtype; zero the padding, even NaN."""
    x = x.to(statistics_dtype(x.dtype))
    if key_padding_mask is None:
        return x
    return torch.where(key_padding_mask[:, None, :, None], 0.0, x)


def _sum_spans(x: Tensor, span: int) -> Tensor:
    return torch.unflatten(x, 2, (-1, span)).sum(3)


def _masked_sum(x: Tensor, key_padding_mask: Tensor | None, span: int) -> Tensor:
    return _sum_spans(_kept(x, key_padding_mask), span).to(x.dtype)


def _masked_mean(x: Tensor, key_padding_mask: Tensor | None, span: int) -> Tensor:
    total = _sum_spans(_kept(x, key_padding_mask), span)
    if key_padding_mask is None:
        return (total / span).to(x.dtype)
    count = _sum_spans(_valid(x, key_padding_mask), span).clamp(min=1.0)
    return (total / count).to(x.dtype)


def _running_mean(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    count = _valid(x, key_padding_mask).cumsum(2).clamp(min=1.0)
    return (_kept(x, key_padding_mask).cumsum(2) / count).to(x.dtype)


def sort_blocks(blocks: Tensor, sort: Tensor) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sort_blocks`."""
    return torch.unflatten(sort @ blocks.flatten(-2), -1, blocks.shape[-2:])


def sorted_padding_mask(
    sort: Tensor, block_size: int, key_padding_mask: Tensor | None, rule: str, num_null: int
) -> Tensor:
    """See `rifflemix.ops.sinkhorn.sorted_padding_mask`."""
    weights = sort.detach().to(statistics_dtype(sort.dtype))
    total = weights.sum(-1, keepdim=True)
    nothing = total <= 0
    if key_padding_mask is None:
        return nothing.expand(*total.shape[:-1], block_size)
    valid = torch.unflatten(~key_padding_mask[:, None], -1, (-1, block_size))
    valid = F.pad(valid, (0, 0, num_null, 0), value=True)
    if rule == "majority":
        return (2 * (weights @ valid.to(weights.dtype)) < total) | nothing
    heaviest = weights.argmax(-1, keepdim=True).expand(*total.shape[:-1], block_size)
    return ~valid.expand(-1, sort.shape[1], -1, -1).gather(2, heaviest) | nothing


def running_logsumexp(x: Tensor) -> Tensor:
    """Compute the running logsumexp of a finite x (..., n, m).

    c[..., u, :] = log sum over v <= u of exp(x[..., v, :]).

    The value is `torch.logcumsumexp`; the derivative is implemented here. torch's derivative uses
    the logarithm of the incoming gradient, so the second derivative is NaN if that gradient is
    zero. Traced graphs have no second derivative, and use torch's derivative.
    """
    if torch.compiler.is_compiling():
        return x.logcumsumexp(-2)
    return _RunningLogSumExp.apply(x)  # type: ignore[no-untyped-call]


class _RunningLogSumExp(torch.autograd.Function):
    """Derivative dc_u / dx_v = exp(x_v - c_u) for v <= u, a number in [0, 1].

    The derivative never divides by a small sum. Since exp(x_v - c_u) is the product
    exp(x_v - c_v) exp(c_v - c_{v+1}) ... exp(c_{u-1} - c_u), sums over u or v follow a linear
    recurrence with factors in [0, 1].
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.logcumsumexp(-2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, c = ctx.saved_tensors
        return (x - c).exp() * _decaying_sums(grad, _decay(c))

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        x, c = ctx.saved_tensors
        shares = ((x - c).exp() * tangent).flip(-2)
        return _decaying_sums(shares, _decay(c).flip(-2)).flip(-2)


def _decay(c: Tensor) -> Tensor:
    """Compute the ratios of successive running sums, (..., n - 1, m)."""
    return (c[..., :-1, :] - c[..., 1:, :]).exp()


def _decaying_sums(x: Tensor, decay: Tensor) -> Tensor:
    """Solve y[v] = x[v] + decay[v] y[v+1] with y[n-1] = x[n-1].

    The solution by doubling needs log2 n steps.
    """
    step, length = 1, x.shape[-2]
    while step < length:
        nearer = x[..., :-step, :] + decay * x[..., step:, :]
        x = torch.cat((nearer, x[..., -step:, :]), -2)
        decay = decay[..., :-step, :] * decay[..., step:, :]
        step *= 2
    return x
