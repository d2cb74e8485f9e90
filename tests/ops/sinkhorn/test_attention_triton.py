"""Sinkhorn attention by Triton kernels, against the reference in float64.

Run on a GPU, or on the CPU by test_triton_interpreter.py, in Triton's interpreter.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from triton_device import DEVICE, INTERPRETED, on_gpu, require_kernels

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.ops import sinkhorn_attention
from rifflemix.ops.dispatch import prefer_backend

require_kernels()

# On a GPU a product of float32 is three of a shorter type.
TOLERANCE = {
    torch.float32: 3e-6 if INTERPRETED else 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}


class Sizes(NamedTuple):
    batch: int
    heads: int
    blocks: int
    block_size: int
    width: int
    sorted_blocks: int = 1  # that a block of queries sees


def inputs(sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, N, 3, H, D), a sort matrix, and a gradient of the output."""
    generator = torch.Generator().manual_seed(sum(sizes))
    length = sizes.blocks * sizes.block_size
    tokens = torch.randn(sizes.batch, length, 3, sizes.heads, sizes.width, generator=generator)
    rows = sizes.blocks * sizes.sorted_blocks
    scores = torch.randn(sizes.batch, sizes.heads, rows, sizes.blocks, generator=generator)
    grad = torch.randn(sizes.batch, sizes.heads, length, sizes.width, generator=generator)
    sort = (2 * scores).softmax(-1)
    return tokens.to(DEVICE, dtype), sort.to(DEVICE, dtype), grad.to(DEVICE, dtype)


def attend(tokens: Tensor, sort: Tensor, block_size: int, backend: str) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in tokens.unbind(2))
    return sinkhorn_attention(q, k, v, sort, block_size, backend=backend)


def output_and_gradients(
    sizes: Sizes, dtype: torch.dtype, backend: str, like: torch.dtype
) -> tuple[Tensor, ...]:
    """In `dtype`, of inputs that were made in `like`."""
    tokens, sort, grad = (x.to(dtype) for x in inputs(sizes, like))
    leaves = (tokens.requires_grad_(), sort.requires_grad_())
    y = attend(*leaves, sizes.block_size, backend)
    return (y.detach(), *torch.autograd.grad(y, leaves, grad))


def compare(sizes: Sizes, dtype: torch.dtype, expected_by: str) -> None:
    found = output_and_gradients(sizes, dtype, "triton", dtype)
    expected = output_and_gradients(sizes, torch.float64, expected_by, dtype)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        error = torch.linalg.norm(a.double() - b) / torch.linalg.norm(b)
        assert error < TOLERANCE[dtype], error


SIZES = [
    Sizes(2, 2, 4, 8, 16),
    Sizes(1, 3, 3, 5, 7),  # nothing a power of two
    Sizes(2, 1, 5, 6, 24, sorted_blocks=2),
    Sizes(1, 2, 1, 3, 1),  # a block, a feature
    Sizes(1, 1, 9, 1, 4),  # blocks of a token
    Sizes(1, 1, 1, 70, 20),  # keys of a block in three tiles
    Sizes(1, 1, 3, 33, 8, sorted_blocks=3),
    Sizes(1, 1, 20, 17, 40),  # positions that the last program shares out
]


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [*((torch.float32, sizes) for sizes in SIZES), (torch.float16, SIZES[1])],
    ids=str,
)
def test_kernel_equals_reference(dtype: torch.dtype, sizes: Sizes) -> None:
    compare(sizes, dtype, "reference")


def test_a_batch_of_none() -> None:
    found = output_and_gradients(Sizes(0, 2, 4, 8, 16), torch.float32, "triton", torch.float32)
    assert [x.shape[0] for x in found] == [0, 0, 0]


def test_tokens_may_lie_in_any_order() -> None:
    tokens, sort, grad = inputs(Sizes(2, 2, 3, 5, 8), torch.float32)
    q, k, v = tokens.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
    q, k = q.transpose(-1, -2).contiguous().transpose(-1, -2), k.flip(2)
    sort = sort.transpose(-1, -2).contiguous().transpose(-1, -2)
    found, expected = [], []
    for backend, into in (("triton", found), ("reference", expected)):
        leaves = [x.detach().double() if into is expected else x.detach() for x in (q, k, v, sort)]
        for leaf in leaves:
            leaf.requires_grad_()
        y = sinkhorn_attention(*leaves, 5, backend=backend)
        slope = grad.transpose(1, 2).contiguous().transpose(1, 2).to(y.dtype)
        into += [y.detach(), *torch.autograd.grad(y, leaves, slope)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


def test_large_scores_stay_finite() -> None:
    tokens, sort, grad = inputs(Sizes(1, 2, 3, 8, 16), torch.float32)
    leaf = (100 * tokens).requires_grad_()
    y = attend(leaf, sort, 8, "triton")
    (slope,) = torch.autograd.grad(y, leaf, grad)
    assert y.isfinite().all()
    assert slope.isfinite().all()
    torch.testing.assert_close(y, attend(leaf, sort, 8, "eager"), atol=2e-3, rtol=1e-4)


def test_second_derivatives() -> None:
    """As of the equation in float64; the kernels' first pass brings in float32's rounding."""
    tokens, sort, _ = inputs(Sizes(1, 2, 3, 4, 8), torch.float32)

    def twice(tokens: Tensor, sort: Tensor, backend: str) -> tuple[Tensor, ...]:
        tokens, sort = tokens.requires_grad_(), sort.requires_grad_()
        energy = attend(tokens, sort, 4, backend).square().sum()
        (slope,) = torch.autograd.grad(energy, tokens, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (tokens, sort))

    found = twice(tokens, sort, "triton")
    for a, b in zip(found, twice(tokens.double(), sort.double(), "eager"), strict=True):
        assert (a - b).abs().max() < 1e-5 * b.abs().max()


@pytest.mark.parametrize(
    "change",
    [
        {"causal": True},
        {"sortcut": 1},
        {"mixture": True},
        {"combine": "sum_out"},
        {"dropout_p": 0.1},
        {"key_padding_mask": torch.zeros(1, 12, dtype=torch.bool, device=DEVICE)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_the_kernels_do_not_know_is_refused(change: dict[str, object]) -> None:
    tokens, sort, _ = inputs(Sizes(1, 2, 3, 4, 8), torch.float32)
    q, k, v = (part.transpose(1, 2) for part in tokens.unbind(2))
    with pytest.raises(InputError, match=r"^backend:"):
        sinkhorn_attention(q, k, v, sort, 4, backend="triton", **change)


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(1, 1, 2, 129, 4),
        Sizes(1, 1, 129, 1, 4),
        Sizes(1, 1, 2, 4, 129),
        Sizes(1, 1, 2, 65, 65),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(sizes: Sizes) -> None:
    tokens, sort, _ = inputs(sizes, torch.float32)
    with pytest.raises(InputError, match=r"^backend:"):
        attend(tokens, sort, sizes.block_size, "triton")


def test_in_a_layer() -> None:
    options = {"num_heads": 2, "max_length": 40, "block_size": 8, "num_iterations": 2}
    layer = rm.create_mixer("sinkhorn", 16, **options).to(DEVICE)
    x = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    x.requires_grad_()
    found = []
    for backend in ("triton", "eager"):
        torch.manual_seed(0)  # of the noise
        with prefer_backend(backend):
            y = layer(x)
            found.append(
                (y.detach(), *torch.autograd.grad(y.square().sum(), (x, layer.qkv.weight)))
            )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


class TestOnAGpu:
    """At the sizes that it is for."""

    pytestmark = on_gpu

    @pytest.mark.parametrize(
        "sizes",
        [Sizes(8, 8, 32, 32, 64), Sizes(8, 8, 64, 64, 64), Sizes(4, 4, 16, 64, 32, 2)],
        ids=str,
    )
    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    def test_many_blocks(self, dtype: torch.dtype, sizes: Sizes) -> None:
        compare(sizes, dtype, "eager")

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_the_largest_blocks(self, dtype: torch.dtype) -> None:
        compare(Sizes(2, 2, 128, 128, 128), dtype, "eager")
