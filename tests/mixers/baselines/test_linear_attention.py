"""Linear attention as sums over features against the explicit weight matrix, in float64."""

from __future__ import annotations

import pytest
import torch
from attention_checks import largest_tensor
from torch import Tensor

from rifflemix.mixers._attention.linear import linear_attention


def dense(q: Tensor, k: Tensor, v: Tensor, epsilon: float | None, causal: bool) -> Tensor:
    weights = q @ k.mT
    if causal:
        weights = weights.tril()
    y = weights @ v
    return y if epsilon is None else y / (weights.sum(-1, keepdim=True) + epsilon)


def draw(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    q, k = torch.rand(2, 2, 3, length, 5, dtype=torch.float64).unbind(0)
    v = torch.randn(2, 3, length, 4, dtype=torch.float64)
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("epsilon", [None, 1e-6, 0.5])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 37])
def test_equals_the_matrix_of_weights(length: int, epsilon: float | None, causal: bool) -> None:
    q, k, v = draw(length)
    y = linear_attention(q, k, v, epsilon=epsilon, causal=causal, chunk_size=8)
    torch.testing.assert_close(y, dense(q, k, v, epsilon, causal), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_correct(causal: bool) -> None:
    inputs = [t[:, :2, :, :2].requires_grad_() for t in draw(5)]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, epsilon=1e-3, causal=causal, chunk_size=2)

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_heads_of_a_token_are_contiguous() -> None:
    """Check that the output projection reads the heads without a copy."""
    y = linear_attention(*draw(7), epsilon=1e-6)
    assert y.transpose(1, 2).is_contiguous()


def test_only_values_may_need_a_gradient() -> None:
    q, k, v = draw(6)
    v.requires_grad_()
    (found,) = torch.autograd.grad(linear_attention(q, k, v, epsilon=1e-6).square().sum(), v)
    (expected,) = torch.autograd.grad(dense(q, k, v, 1e-6, False).square().sum(), v)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


def test_no_tokens() -> None:
    q, k, v = draw(0)
    assert linear_attention(q, k, v, epsilon=1e-6).shape == (2, 3, 0, 4)


@pytest.mark.parametrize("causal", [False, True])
def test_long_sums_keep_their_precision_in_bfloat16(causal: bool) -> None:
    q, k, v = draw(4096, torch.bfloat16)
    v = v + 1  # a running sum in bfloat16 would stall
    expected = linear_attention(q.double(), k.double(), v.double(), epsilon=1e-6, causal=causal)
    y = linear_attention(q, k, v, epsilon=1e-6, causal=causal)
    assert y.dtype == torch.bfloat16
    assert (y.double() - expected).abs().mean() < 0.02 * expected.abs().mean()


def test_causal_memory_is_linear() -> None:
    def peak(length: int) -> int:
        inputs = [t.requires_grad_() for t in draw(length)]
        return largest_tensor(
            lambda: linear_attention(*inputs, epsilon=1e-6, causal=True).sum().backward()
        )

    # The weights inside the chunks of 64 tokens are the largest.
    assert peak(4096) == 2 * peak(2048) == 2 * 3 * 4096 * 64
