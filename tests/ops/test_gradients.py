"""A gradient with `create_graph` equals the gradient without, even if inputs depend on each other.

With a graph, kernels differentiate a plain formula. Inputs that share a tensor, or depend on
each other, must count once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rifflemix.ops import (
    BlockMap,
    block_mlp,
    causal_token_statistics,
    channel_permute,
    circular_shift,
    dropout,
    dropout_attention,
    group_sort,
    linear_recurrence,
    max_exchange,
    native,
    rank_filter,
    sinkhorn,
    sinkhorn_attention,
    token_statistics,
)
from rifflemix.ops.convolution.backends import short_convolution
from rifflemix.ops.gradients import second_order_gradients

Run = Callable[[Tensor, Tensor], Tensor]


def attention(p: float, *, is_causal: bool = False) -> dict[str, Run]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(3)
        return dropout_attention(q, k, v, p, is_causal=is_causal)

    return {
        "one tensor": lambda x, _: attend(x, x, x),
        "keys are values": lambda x, z: attend(x, z, z),
        "values of keys": lambda x, z: attend(x, z, 2 * z),
        "queries of keys, keys of values": lambda x, z: attend((z * x).sin(), z * x, x),
    }


def blocks(q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    return sinkhorn_attention(q, k, v, sinkhorn(scores[..., :3, :3], 2), 2)


def in_pieces(x: Tensor, temperature: Tensor) -> Tensor:
    """Run a stream in two pieces; its state depends on the temperature and x."""
    y, state = causal_token_statistics(x[:, :, :3], temperature, return_state=True)
    return torch.cat((y, causal_token_statistics(x * x, temperature, initial_state=state)), 2)


OPERATORS: dict[str, dict[str, Run]] = {
    "dropout_attention": attention(0.3),
    "causal dropout_attention": attention(0.3, is_causal=True),
    "torch's attention": attention(0.0),
    "sinkhorn_attention": {
        "one tensor": lambda x, z: blocks(x, x, x, z),
        "keys are values": lambda x, z: blocks(x, z, z, z),
        "values of keys, scores of queries": lambda x, z: blocks(x, z, 2 * z, x.exp()),
    },
    "linear_recurrence": {
        "one tensor": lambda x, z: linear_recurrence(
            *[x.tanh()] * 3, log_decay=-z.square(), beta=z[..., 0].sigmoid()
        ),
        "keys are values": lambda x, z: linear_recurrence(
            x, k := z.tanh(), k, log_decay=-x[..., 0].square(), erase=(0.5 * k, k)
        ),
    },
    "token_statistics": {
        "temperature of tokens": lambda x, _: token_statistics(x, x.mean((0, 2, 3)).exp()),
        "tokens of temperature": lambda x, z: token_statistics(
            x * (t := z.mean((0, 2, 3)))[:, None, None], t
        ),
    },
    "causal_token_statistics": {
        "temperature of tokens": lambda x, _: causal_token_statistics(x, x.mean((0, 2, 3)).exp()),
        "bias of temperature": lambda x, z: causal_token_statistics(
            x, t := z.mean((0, 2, 3)), t[:, None].expand(2, 6) * 0.1
        ),
        "two pieces": lambda x, z: in_pieces(x, z.mean((0, 2, 3))),
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=f"{operator}: {what}")
        for operator, shared in OPERATORS.items()
        for what, run in shared.items()
    ],
)
def test_create_graph_does_not_change_the_gradient(run: Run, dtype: torch.dtype) -> None:
    x = torch.randn(2, 2, 6, 4, dtype=dtype, requires_grad=True)
    z = torch.randn(2, 2, 6, 4, dtype=dtype, requires_grad=True)

    def gradients(*, create_graph: bool) -> tuple[Tensor | None, ...]:
        y = run(x, z)
        loss = (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)).sum()
        return torch.autograd.grad(loss, (x, z), create_graph=create_graph, allow_unused=True)

    torch.testing.assert_close(gradients(create_graph=True), gradients(create_graph=False))


# One call of each CPU kernel.
BY_KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "circular_shift": lambda x: circular_shift(x, [1, 2, 3, 4], backend="cpu"),
    "group_sort": lambda x: group_sort(x, 2, backend="cpu"),
    "group_sort, pairs": lambda x: group_sort(x, 3, backend="cpu"),
    "channel_permute, pairs": lambda x: channel_permute(x, [1, 2, 3, 4], 3, backend="cpu"),
    "max_exchange": lambda x: max_exchange(x, backend="cpu"),
    "rank_filter": lambda x: rank_filter(x, [0, 1, 2, 1], 3, backend="cpu"),
    "dropout": lambda x: dropout(x, 0.3, backend="cpu"),
    "dropout_attention": lambda x: dropout_attention(*[x[:, None]] * 3, 0.3, backend="cpu"),
    "sinkhorn": lambda x: sinkhorn(x[:, :4], 2, backend="cpu"),
    "sinkhorn_attention": lambda x: sinkhorn_attention(
        *[x[:, None]] * 3, x[:, None, :3, :3], 2, backend="cpu"
    ),
    "block_mlp": lambda x: block_mlp(x, [BlockMap(x[0, :2, :2, None].exp())], backend="cpu"),
    "short_convolution": lambda x: short_convolution(x, x[0, :3], x[1, 0], -2, 6, "cpu"),
    "linear_recurrence": lambda x: linear_recurrence(
        *[x[:, None]] * 3, log_decay=-x.square()[:, None], beta=x[:, None, :, 0], backend="cpu"
    ),
    "token_statistics": lambda x: token_statistics(x[:, None], torch.ones(1), backend="cpu"),
    "causal_token_statistics": lambda x: causal_token_statistics(
        x[:, None], torch.ones(1), backend="cpu"
    ),
}


@pytest.mark.skipif(native.library() is None, reason="needs the compiled kernels")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch loops over the batch
@pytest.mark.parametrize("name", BY_KERNELS)
def test_batched_gradients_equal_single_gradients(name: str) -> None:
    """`torch.autograd.functional.jacobian` computes batched gradients in this way."""
    x = torch.randn(2, 6, 4, requires_grad=True)
    y = BY_KERNELS[name](x)
    grads = torch.randn(3, *y.shape)

    def gradient(grad: Tensor, **options: bool) -> Tensor:
        (found,) = torch.autograd.grad(y, x, grad, retain_graph=True, **options)
        return found

    each = torch.stack([gradient(grad) for grad in grads])
    torch.testing.assert_close(gradient(grads, is_grads_batched=True), each)


def test_inputs_without_requires_grad_get_no_gradient() -> None:
    x, fixed = torch.randn(3, requires_grad=True), torch.randn(3)
    first, second, none, nothing = second_order_gradients(
        lambda a, b, c, _: (a * b * c, a + b), (x, x, fixed, None), (torch.ones(3), None)
    )
    assert none is None
    assert nothing is None
    torch.testing.assert_close((first, second), (x * fixed,) * 2)
