"""Splitting queries, keys and values: the full gradient, with and without copies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rifflemix.mixers._attention.autograd_functions import unbind_qkv


def heads_of(parts: int) -> Tensor:
    torch.manual_seed(parts)
    return torch.randn(2, 5, parts, 3, 4, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("parts", [2, 3])
def test_adjacent_gradients_are_joined_without_a_copy(parts: int) -> None:
    heads = heads_of(parts)
    whole = torch.randn_like(heads)
    (grad,) = torch.autograd.grad(unbind_qkv(heads), heads, whole.unbind(2))
    assert grad.data_ptr() == whole.data_ptr()
    assert torch.equal(grad, whole)


@pytest.mark.parametrize("change", ["order", "memory", "layout", "none"])
def test_other_gradients_are_joined_by_a_copy(change: str) -> None:
    heads = heads_of(3)
    grads = list(torch.randn_like(heads).unbind(2))
    if change == "order":
        grads.reverse()
    elif change == "memory":
        grads[1] = grads[1].clone()
    elif change == "layout":
        grads = list(torch.randn(2, 3, 5, 3, 4, dtype=torch.float64).unbind(1))
    used = slice(0, 2) if change == "none" else slice(None)
    (grad,) = torch.autograd.grad(unbind_qkv(heads)[used], heads, grads[used])
    if change == "none":
        grads[2] = torch.zeros_like(grads[2])
    assert torch.equal(grad, torch.stack(grads, 2))


def test_second_derivatives() -> None:
    def run(heads: Tensor) -> Tensor:
        q, k, v = unbind_qkv(heads)
        return (q * k).sum(-1, keepdim=True) * v

    assert torch.autograd.gradgradcheck(run, heads_of(3), fast_mode=True)
