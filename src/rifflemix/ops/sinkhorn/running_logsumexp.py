"""Running logsumexp with gradients of every order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def running_logsumexp(x: Tensor) -> Tensor:
    """Compute the running logsumexp of a finite x (..., n, m).

    c[..., u, :] = log sum over v <= u of exp(x[..., v, :]).

    The value is `torch.logcumsumexp`; the derivative is implemented here. torch's derivative uses
    the logarithm of the incoming gradient, so the second derivative is NaN if that gradient is
    zero. Traced graphs have no second derivative, and use torch's derivative.
    """
    if torch.compiler.is_compiling():
        return x.logcumsumexp(-2)
    c: Tensor = _RunningLogSumExp.apply(x)  # type: ignore[no-untyped-call]
    return c


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
        gradient: Tensor = (x - c).exp() * _decaying_sums(grad, _decay(c))
        return gradient

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
