"""The compiled kernels give exactly the values, indices and gradients of the eager backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import (
    DTYPES,
    ORDERS,
    Operator,
    check,
    mask_of,
    needs_kernels,
    options_of,
    same,
    values,
)
from permutation_cases import MASK_TENSORS, tokens
from torch import Tensor

from rifflemix.ops import (
    channel_permute,
    circular_shift,
    group_sort,
    max_exchange,
)

LENGTHS = (*range(1, 71), 127, 128, 129, 255, 256, 257, 513, 1000)
CHANNELS = (1, 3, 16, 17, 33)

pytestmark = needs_kernels


def largest_divisor(number: int, most: int) -> int:
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= most)


@pytest.mark.parametrize("channels", CHANNELS)
def test_sort_of_all_tokens_equals_eager(channels: int) -> None:
    kinds = itertools.cycle(itertools.product(DTYPES, ORDERS, range(3), (1, 2)))
    for length in LENGTHS:
        dtype, order, mask, some = next(kinds)
        options = options_of(order, channels) | {"key_padding_mask": mask_of(mask, length)}
        heads = largest_divisor(channels, 3 * some)
        check(group_sort, values(2, length, channels, dtype), heads=heads, **options)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 15, 16, 31, 64, 100])
def test_group_sort_of_all_group_sizes_equals_eager(size: int, order: str) -> None:
    for dtype, mask, groups in zip(DTYPES, range(3), (1, 3, 20), strict=True):
        length = size * groups
        options = {"heads": 6, "key_padding_mask": mask_of(mask, length), **options_of(order, 42)}
        check(group_sort, values(2, length, 42, dtype), groups, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 2, 4, 32, 64])
def test_operators_with_heads_equal_eager(heads: int, dtype: torch.dtype) -> None:
    x = values(2, 60, 64, dtype)
    for groups in (1, 5, 30):
        check(group_sort, x, groups, heads=heads)
        check(channel_permute, x, torch.arange(64) * 7, groups, heads=heads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 70, 200])
def test_shifts_and_exchanges_equal_eager(length: int, dtype: torch.dtype) -> None:
    for channels, mask in itertools.product((5, 16, 32, 40), range(3)):
        x = values(2, length, channels, dtype)
        steps = torch.randint(-2 * length, 2 * length + 1, (channels,))
        options = {"key_padding_mask": mask_of(mask, length)}
        check(circular_shift, x, steps, **options)
        check(max_exchange, x, **options)
        check(channel_permute, x, steps, 1, order="descending", **options)
        if length % 2 == 0:
            check(channel_permute, x, steps, length // 2, **options)
            check(channel_permute, x, steps, length // 2, order="descending", **options)


@pytest.mark.parametrize("mask", MASK_TENSORS)
def test_padded_tokens_equal_eager(mask: str) -> None:
    options = {"key_padding_mask": MASK_TENSORS[mask]}
    x = values(3, 12, 24, torch.float32)
    for groups, order in itertools.product((1, 2, 6, 12), ("reference", "ascending", "descending")):
        check(group_sort, x, groups, order=order, **options)
        check(channel_permute, x, list(range(24)), groups, order=order, **options)
    check(circular_shift, x, list(range(24)), **options)
    check(max_exchange, x, **options)


@settings(max_examples=60, deadline=None)
@given(case=tokens(), order=st.sampled_from(list(ORDERS)))
def test_random_tokens_equal_eager(case: tuple[Tensor, Tensor | None, int], order: str) -> None:
    x, mask, groups = case
    x = x if x.dtype in DTYPES else x.float()
    channels = x.shape[2]
    check(group_sort, x, groups, key_padding_mask=mask, **options_of(order, channels))
    if order != "mixed":
        steps = torch.randint(-9, 9, (channels,))
        check(channel_permute, x, steps, groups, order=order, key_padding_mask=mask)
    check(max_exchange, x, key_padding_mask=mask)


@pytest.mark.parametrize("length", [32768, 32769, 65536, 65537])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_long_sequences_equal_eager(length: int, dtype: torch.dtype) -> None:
    """Lengths around the limit of 16-bit indices in sort keys and in the backward pass."""
    check(group_sort, values(1, length, 2, dtype), order="ascending")


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda x: torch.cat((x, x), dim=2)[:, :, : x.shape[2]],
        lambda x: torch.cat((x, x), dim=1)[:, : x.shape[1]],
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x[:, :, :1].expand_as(x),
        lambda x: x[:1].expand_as(x),
        lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    ],
    ids=["channels", "tokens", "transposed", "one channel", "one sample", "every second"],
)
def test_memory_layouts_equal_eager(lay_out: Callable[[Tensor], Tensor]) -> None:
    x = lay_out(values(2, 24, 20, torch.float32))
    for groups in (1, 12):
        check(group_sort, x, groups)
        check(channel_permute, x, torch.arange(20), groups)
    check(max_exchange, x)
    y = group_sort(values(2, 24, 20, torch.float32).requires_grad_(), 12, backend="cpu")
    y.backward(lay_out(torch.randn(2, 24, 20)))


def test_threads_and_batch_do_not_change_results() -> None:
    x = values(3, 256, 100, torch.float32)
    steps = torch.arange(100)
    operators: list[Operator] = [
        group_sort,
        lambda x: group_sort(x, 128),
        lambda x: group_sort(x, 4, order="ascending"),
        lambda x: channel_permute(x, steps, 128),
        lambda x: circular_shift(x, steps),
        max_exchange,
    ]
    threads = torch.get_num_threads()
    try:
        for operator in operators:
            torch.set_num_threads(1)
            alone = torch.cat([operator(sample) for sample in x.split(1)])
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                assert same(operator(x), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("groups", [1, 12])
@pytest.mark.parametrize("shifted", [False, True])
def test_second_order_gradients(groups: int, shifted: bool) -> None:
    mask = torch.rand(2, 24) < 0.3
    found = []
    x, weight, other = (torch.randn(2, 24, 20) for _ in range(3))
    for backend in ("eager", "cpu"):
        leaf, direction = x.clone().requires_grad_(), weight.clone().requires_grad_()
        options = {"key_padding_mask": mask, "backend": backend}
        if shifted:
            y = channel_permute(leaf, torch.arange(20), groups, **options)
        else:
            y = max_exchange(group_sort(leaf, groups, **options), **options)
        (gradient,) = torch.autograd.grad(y, leaf, direction, create_graph=True)
        found.append(torch.autograd.grad(gradient, direction, other)[0])
    assert torch.equal(*found)


def test_tensors_saved_for_backward_are_small() -> None:
    x = torch.randn(2, 64, 48, requires_grad=True)

    def kept(operator: Operator) -> int:
        sizes = []

        def note(saved: Tensor) -> Tensor:
            sizes.append(saved.nbytes)
            return saved

        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            operator()
        return sum(sizes)

    assert kept(lambda: group_sort(x, backend="cpu")) == 2 * x.numel()
    assert kept(lambda: group_sort(x, 32, backend="cpu")) == x.numel() // 2
    assert kept(lambda: group_sort(x.detach(), backend="cpu")) == 0


class NoGradient(torch.autograd.Function):
    """Pass the input on, but return no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


@pytest.mark.parametrize("groups", [1, 128])
def test_undefined_output_gradient_gives_no_input_gradient(groups: int) -> None:
    x = torch.randn(1, 256, 64, requires_grad=True)
    NoGradient.apply(group_sort(x, groups, backend="cpu")).sum().backward()
    assert x.grad is None
