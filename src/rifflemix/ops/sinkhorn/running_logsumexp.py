"""Logarithm of running sums of exponentials, with gradients of every order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def running_logsumexp(x: Tensor) -> Tensor:
    """c[..., u, :] = log sum over v <= u of exp(x[..., v, :]), for finite x (..., n, m).

    The value is torch's logcumsumexp, the derivative is our own: torch takes the logarithm of the
    incoming gradient, and where that gradient is zero, the second derivative is NaN. Traced graphs
    take no second derivative, and use torch's.
    """
    if torch.compiler.is_compiling():
        return x.logcumsumexp(-2)
    c: Tensor = _RunningLogSumExp.apply(x)  # type: ignore[no-untyped-call]
    return c


class _RunningLogSumExp(torch.autograd.Function):
    """dc_u / dx_v = exp(x_v - c_u) for v <= u: a share in [0, 1], never a quotient of small sums.

    exp(x_v - c_u) = exp(x_v - c_v) exp(c_v - c_{v+1}) ... exp(c_{u-1} - c_u), so sums over u or v
    follow a linear recurrence with factors in [0, 1].
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
        gradient: Tensor = (x - c).exp() * _decaying_sums(grad, _decay(c))
        return gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        x, c = ctx.saved_tensors
        shares = ((x - c).exp() * tangent).flip(-2)
        return _decaying_sums(shares, _decay(c).flip(-2)).flip(-2)


def _decay(c: Tensor) -> Tensor:
    """(..., n - 1, m): how much of the sum up to position v + 1 was there at position v."""
    return (c[..., :-1, :] - c[..., 1:, :]).exp()


def _decaying_sums(x: Tensor, decay: Tensor) -> Tensor:
    """The y with y[n-1] = x[n-1] and y[v] = x[v] + decay[v] y[v+1], by doubling: log2 n steps."""
    step, length = 1, x.shape[-2]
    while step < length:
        nearer = x[..., :-step, :] + decay * x[..., step:, :]
        x = torch.cat((nearer, x[..., -step:, :]), -2)
        decay = decay[..., :-step, :] * decay[..., step:, :]
        step *= 2
    return x
